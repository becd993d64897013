"""Overheads of the harness on a launcher's ranks: clock, barrier, empty plan, calls against C.

    mpirun -n 2 python -m bench.trials.harness [LIBRARY [COLLECTIVE ...]]

LIBRARY: ``benchmarks/collective_loop.c`` as a shared library for the same MPI.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from statistics import median

import numpy as np

from bench.timing.measure import Timing, measure
from bench.timing.starts import BarrierStart
from collectives.execution.mpi.transport import MpiTransport
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.transport import Action, Counted, LibraryCall
from collectives.execution.world import World
from collectives.schedule.catalogue import spec
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op

_READINGS, _BARRIERS, _FIRINGS = 20_000, 2_000, 2_000
# Bytes of what is held against C.
_SIZES = (8, 4096, 65536, 1 << 20)
# How each collective is held against C: its letter in the loop, and whether in place (MPI has a
# broadcast in place only).
_KINDS = {"allreduce": (b"r", False), "broadcast": (b"b", True), "allgather": (b"g", False)}
# Seconds of a loop, and turns. Two sides of a turn are 20 ms apart, for other programs and the
# machine's own clock change what both take from one tenth of a second to the next.
_LOOP_S, _TURNS, _MOST_CALLS = 0.02, 41, 100_000


class _Nothing(Counted):
    """A plan that moves nothing."""

    def __init__(self) -> None:
        super().__init__(0, 0)

    def __call__(self) -> None:
        """Run once."""

    def close(self) -> None:
        """Nothing is held."""


def costs(world: World, clock: Callable[[], float]) -> dict[str, float]:
    """Seconds of a reading of the clock, of a barrier (median, slowest rank) and of an empty plan.

    All ranks call this together.
    """
    start = clock()
    for _ in range(_READINGS):
        clock()
    reading = (clock() - start) / _READINGS
    barriers = []
    for _ in range(_BARRIERS):
        start = clock()
        world.barrier()
        barriers.append(clock() - start)
    timed = measure(_Nothing(), world, Timing(100, _FIRINGS), BarrierStart(world, clock=clock))
    slowest = max(world.gather(median(barriers)))
    return {"clock": reading, "barrier": slowest, "empty": median(timed.times)}


def against_c(
    world: MpiWorld, library: ctypes.CDLL, collective: str, size: int
) -> tuple[float, float, float]:
    """Seconds of a call of MPI's collective by our loop and by C's, and the ratio (ours to C's).

    Both sides call it on the same buffers of the same processes, in turns of 20 ms; each is the
    slowest rank's. The ratio is the median of the turns' ratios. All ranks call this together.
    """
    kind, in_place = _KINDS[collective]
    # As in nccl-tests, an all-gather has 16 bytes a rank at the least.
    nbytes = max(size, 16 * world.size) if collective == "allgather" else size
    count = nbytes // 4
    part = count // world.size if collective == "allgather" else count
    target = np.zeros(count, np.float32)
    source = target if in_place else np.ones(part, np.float32)
    addition = op("sum") if collective == "allreduce" else None
    buffers = {Buffer.IN: source, Buffer.OUT: target}
    call = LibraryCall(spec(collective), buffers, addition, part, in_place=in_place)
    with closing(MpiTransport(world).library(call)) as action:
        c_loop = library.time_calls
        c_loop.restype = ctypes.c_double
        pointers = [ctypes.c_void_p(one.ctypes.data) for one in (source, target)]

        def in_c(calls: int) -> float:
            return float(c_loop(ctypes.c_char(kind), calls, *pointers, count, world.size))

        def of_ours(calls: int) -> float:
            return _loop(action, world, calls)

        sides = (of_ours, in_c)
        once = max(side(20) for side in sides for _ in range(2))
        calls = world.broadcast(int(min(max(_LOOP_S / once, 6), _MOST_CALLS)), 0)
        turns = np.empty((_TURNS, 2))
        for turn in range(_TURNS):
            for side in (turn % 2, 1 - turn % 2):
                turns[turn, side] = sides[side](calls)
        ours, c = (world.combine(turns[:, side].copy(), "max") for side in (0, 1))
        return float(np.median(ours)), float(np.median(c)), float(np.median(ours / c))


def _loop(action: Action, world: World, calls: int) -> float:
    """Seconds of one of so many calls back to back, as `--timing loop` takes them."""
    rules = Timing(warmup=0, iterations=calls, timing="loop")
    return measure(action, world, rules).times[0]


def main(argv: list[str]) -> None:
    """Print the costs on rank 0, as JSON; with a library also what calls take against C."""
    world = MpiWorld()
    printed: dict[str, float | Mapping[str, Mapping[int, tuple[float, ...]]]] = {
        **costs(world, time.perf_counter)
    }
    if argv:
        library = ctypes.CDLL(argv[0])
        printed["against_c"] = {
            collective: {size: against_c(world, library, collective, size) for size in _SIZES}
            for collective in argv[1:] or _KINDS
        }
    if world.rank == 0:
        print(json.dumps(printed), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
