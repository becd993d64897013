"""Overheads of the harness on a launcher's ranks: clock, barrier, empty plan, calls against C.

    mpirun -n 2 python -m bench.trials.harness [LIBRARY [NAME ...]]

LIBRARY: ``benchmarks/collective_loop.c`` as a shared library for the same MPI. NAME: a collective,
or on two ranks a schedule of all-reduce or a test of point-to-point messages (send, ping_pong, put,
get, put_latency, get_latency); all collectives and schedules without.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.links.exchange import ExchangePattern, exchange
from bench.run.contenders import LARGE_TRIPS, SMALL_BYTES, TRIPS
from bench.timing.measure import Timing, measure
from bench.timing.starts import BarrierStart
from collectives.execution.lower import lower
from collectives.execution.mpi.transport import MpiTransport
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.plan import Plan
from collectives.execution.transport import Action, Counted, LibraryCall, OneSidedAccess
from collectives.execution.world import World
from collectives.schedule.catalogue import build, spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op

_READINGS, _BARRIERS, _FIRINGS = 20_000, 2_000, 2_000
# Sizes in bytes that are compared with C.
_SIZES = (8, 4096, 65536, 1 << 20)
# The letter in C's loop of each collective, and of each schedule of all-reduce on two ranks.
_COLLECTIVES = {"allreduce": b"r", "broadcast": b"b", "allgather": b"g"}
_SCHEDULES = {"ring": b"c", "recursive_doubling": b"d"}
#: The letter in C's loop of each test of point-to-point messages, and whether it waits for each.
PAIR_TESTS = {
    "send": (b"s", False),
    "ping_pong": (b"l", True),
    "put": (b"p", False),
    "get": (b"g", False),
    "put_latency": (b"P", True),
    "get_latency": (b"G", True),
}
_WINDOW = 64  # messages of an iteration
# Seconds of a loop, turns, and the most calls of a loop. Both sides of a turn run within 40 ms,
# because other programs and the core's frequency change both times within tenths of a second.
_LOOP_S, _TURNS, _MOST_CALLS = 0.02, 21, 100_000


class _Nothing(Counted):
    """An action that moves no data."""

    def __init__(self) -> None:
        super().__init__(0, 0)

    def __call__(self) -> None:
        """Run once."""

    def close(self) -> None:
        """Do nothing; no resources are held."""


def costs(world: World, clock: Callable[[], float]) -> dict[str, float]:
    """Seconds of a clock reading, of a barrier (median, slowest rank) and of an empty plan.

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
    return {"clock": reading, "barrier": slowest, "empty": median(timed.times_s)}


class CLoop:
    """Compares ``benchmarks/collective_loop.c`` with our loops of the same calls.

    Both sides use the same buffers of the same processes, in turns of 20 ms; a time is the slowest
    rank's. A result is the seconds per call of our loop, of C's, and the median of the turns'
    ratios. All ranks call the methods together.
    """

    def __init__(self, world: MpiWorld, path: str) -> None:
        self._world, self._library = world, ctypes.CDLL(path)
        self._transport = MpiTransport(world)

    def collective(self, name: str, size: int) -> tuple[float, float, float]:
        """Time a collective of MPI, called by our loop and by the loop in C."""
        # As in nccl-tests, an all-gather has 16 bytes a rank at the least.
        gathers, in_place = name == "allgather", name == "broadcast"  # MPI has no other broadcast
        count = (max(size, 16 * self._world.size) if gathers else size) // 4
        part = count // self._world.size if gathers else count
        target = self._floats(count, 0)
        source = target if in_place else self._floats(part, 1)
        buffers = {Buffer.IN: source, Buffer.OUT: target}
        addition = op("sum") if name == "allreduce" else None
        call = LibraryCall(spec(name), buffers, addition, part, in_place=in_place)
        ours, function = self._transport.library(call), self._library.time_calls
        sizes = (count, self._world.size)
        return self._turns(ours, function, _COLLECTIVES[name], [source, target], *sizes)

    def schedule(self, name: str, size: int) -> tuple[float, float, float]:
        """Time an all-reduce by a schedule on two ranks; both sides send the same messages."""
        source, target = self._floats(size // 4, 1), self._floats(size // 4, 0)
        schedule, rank = build("allreduce", name, self._world.size), self._world.rank
        ours = Plan(
            schedule, spec("allreduce"), self._transport, rank, source, target, op("sum"), size // 4
        )
        function, kind = self._library.time_schedule, _SCHEDULES[name]
        return self._turns(ours, function, kind, [source, target], target.size)

    def pair(self, name: str, size: int) -> tuple[float, float, float]:
        """Time a window of messages, or round trips, between two ranks; see `PAIR_TESTS`."""
        kind, waits = PAIR_TESTS[name]
        trips = TRIPS if size <= SMALL_BYTES else LARGE_TRIPS  # as `busbar pt2pt`
        how, times = name.partition("_")[0], trips if waits else _WINDOW
        messages = 1 if waits else times
        if how == "ping":
            schedule, spec = exchange(ExchangePattern(chained=True), [(0, 1)], 2, times)
        else:
            ends = [(1, 0)] if how == "get" else [(0, 1)]
            pattern = ExchangePattern(messages=messages, answered=how == "send")
            schedule, spec = exchange(pattern, ends, 2)
        reached = how in ("put", "get")
        transport = MpiTransport(self._world, reached=True) if reached else self._transport
        elements, rank = spec.size(2, size, 1).elements, self._world.rank
        program = lower(schedule, Layout.of(schedule, spec, 0), rank, elements, in_place=False)
        counts = program.elements
        source, target = (transport.allocate(max(counts[b], 1)) for b in (Buffer.IN, Buffer.OUT))
        source[:], target[:] = 1, 0
        try:
            if reached:
                buffers = {Buffer.IN: source, Buffer.OUT: target}
                access = OneSidedAccess(how, times // messages)
                action = transport.one_sided(program, buffers, access)
                mine, function = source if how == "put" else target, self._library.time_reach
                return self._turns(action, function, kind, [mine], size, times)
            ours = Plan(schedule, spec, transport, rank, source, target, None, elements)
            arrays = [source, target if how == "send" else np.ones(size, np.uint8)]
            return self._turns(ours, self._library.time_messages, kind, arrays, size, times)
        finally:
            if reached:
                transport.close()

    def _floats(self, count: int, value: float) -> NDArray[np.float32]:
        """A buffer as a run has it, filled with a value."""
        array = self._transport.allocate(4 * count).view(np.float32)
        array[:] = value
        return array

    def _turns(
        self, action: Action, function: Any, kind: bytes, arrays: Sequence[NDArray[Any]], *more: int
    ) -> tuple[float, float, float]:
        function.restype = ctypes.c_double
        pointers = [ctypes.c_void_p(one.ctypes.data) for one in arrays]

        def in_c(calls: int) -> float:
            return float(function(ctypes.c_char(kind), calls, *pointers, *more))

        def of_ours(calls: int) -> float:  # as `--timing loop` measures them
            rules = Timing(warmup=0, iterations=calls, timing="loop")
            return measure(action, self._world, rules).times_s[0]

        with closing(action):
            sides = (of_ours, in_c)
            once = max(side(20) for side in sides for _ in range(2))
            calls = self._world.broadcast(int(min(max(_LOOP_S / once, 6), _MOST_CALLS)), 0)
            turns = np.empty((_TURNS, 2))
            for turn in range(_TURNS):
                for side in (turn % 2, 1 - turn % 2):
                    turns[turn, side] = sides[side](calls)
        ours, c = (self._world.combine(turns[:, side].copy(), "max") for side in (0, 1))
        return float(np.median(ours)), float(np.median(c)), float(np.median(ours / c))


def main(argv: list[str]) -> None:
    """Print the costs on rank 0 as JSON; with a library, also the comparison with C."""
    world = MpiWorld()
    printed: dict[str, float | Mapping[str, Mapping[int, tuple[float, ...]]]] = {
        **costs(world, time.perf_counter)
    }
    if argv:
        loop = CLoop(world, argv[0])
        tables = {name: (loop.collective, f"MPI's {name}") for name in _COLLECTIVES}
        if world.size == 2:
            tables |= {name: (loop.schedule, f"{name} over mpi") for name in _SCHEDULES}
            tables |= {
                name: (loop.pair, f"{name} over mpi") for name in PAIR_TESTS if name in argv[1:]
            }
        printed["against_c"] = {
            text: {size: measured(name, size) for size in _SIZES}
            for name, (measured, text) in tables.items()
            if name in (argv[1:] or tables)
        }
    if world.rank == 0:
        print(json.dumps(printed), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
