"""One run of `shm_vs_mpi.py`, under mpirun: contenders take turns, rank 0 prints JSON lines.

In a contender's turn, every operation begins behind a barrier and is timed on every rank. The
slowest rank's time counts, and the median of the turn, so that an operation disturbed by another
program does not affect the result. Operations too short for that are timed back to back. All times
in a line were measured in the same minutes by the same processes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from busbar.units import parse_size
from collectives.execution.mpi.transport import MpiTransport
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.plan import Plan
from collectives.execution.shm.affinity import AFFINITIES, set_affinity
from collectives.execution.shm.transport import ShmTransport
from collectives.execution.transport import Action, Array, LibraryCall, Start
from collectives.schedule.catalogue import build, parse, spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op

SHM = {
    "allreduce": ("sharded_ps", "ring", "one_shot", "recursive_doubling"),
    "reduce": ("sharded", "rabenseifner", "flat"),
    "reduce_scatter": ("direct", "ring"),
    "allgather": ("direct", "ring"),
    "broadcast": ("sharded", "sharded:back=0", "flat"),
    "alltoall": ("direct", "pairwise"),
}
Turn = Callable[[int], "list[float]"]
"""``turn(n)``: this rank's seconds of each of n operations, or of one of n back to back."""
SHORT = 1 << 16
"""Bytes below which operations are timed back to back, and not held against the limit."""


def main() -> None:
    """Measure every size and placement that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collective", choices=SHM, default="allreduce")
    parser.add_argument("--bytes", type=parse_size, nargs="+", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turn", type=float, default=0.1, help="seconds a turn should take")
    parser.add_argument("--affinity", choices=AFFINITIES, default="none")
    parser.add_argument("--algorithms", help="of the shm transport, instead of the usual ones")
    parser.add_argument("--mpi-ring", action="store_true", help="also the ring over MPI")
    given = parser.parse_args()
    world = MpiWorld()
    set_affinity(given.affinity, world.rank, world.size)
    transport = ShmTransport(world)
    for nbytes in given.bytes:
        for in_place in (False, True) if spec(given.collective).in_place else (False,):
            found = case(world, transport, given, nbytes, in_place)
            if world.rank == 0:
                print(json.dumps(found), flush=True)
    transport.close()


def case(
    world: MpiWorld,
    transport: ShmTransport,
    given: argparse.Namespace,
    nbytes: int,
    in_place: bool,
) -> dict[str, object]:
    """Measure all contenders at one size. Returns the seconds of every round, by name."""
    what, size = spec(given.collective), world.size
    # As nccl-tests count: the size is the whole vector's.
    elements = nbytes // 4 // max(1, what.parts(size))
    names = (given.algorithms or ",".join(SHM[what.name])).split(",")
    if nbytes > SHORT and not given.algorithms:
        names = names[:2]
    with ExitStack() as stack:
        turns: dict[str, Turn] = {}
        layout = Layout(what, size, max(1, what.parts(size)))
        mine = _memory(transport.allocate, layout, world.rank, elements, in_place)
        shared = transport.worksharing(_call(layout, mine, elements, in_place))
        stack.callback(shared.close)
        turns["worksharing"] = _native(world, shared, nbytes < SHORT)
        for name in names:
            plan = _plan(name, what.name, transport, world, mine, elements, in_place)
            turns[f"shm {name}"] = _native(world, stack.enter_context(plan), nbytes < SHORT)
        mpi = MpiTransport(world)
        theirs = _memory(mpi.allocate, layout, world.rank, elements, in_place)
        call = mpi.library(_call(layout, theirs, elements, in_place))
        turns["library"] = _native(world, call, nbytes < SHORT)
        if given.mpi_ring:
            plan = _plan("ring", what.name, mpi, world, theirs, elements, in_place)
            turns["mpi ring"] = _native(world, stack.enter_context(plan), nbytes < SHORT)
        if nbytes >= SHORT:
            # Only zeros are copied and added, so buffers keep their content.
            of = _call(layout, mine, elements, in_place)
            turns["limit"] = lambda n: [transport.limit(of, n)]
        times = _rounds(world, turns, given)
    return {
        "collective": what.name,
        "library": world.library(),
        "threads": world.threads().name,
        "ranks": size,
        "bytes": nbytes,
        "in_place": in_place,
        "factor": what.bus_factor(size),
        "times": times,
    }


def _memory(
    allocate: Callable[[int], Array], layout: Layout, rank: int, elements: int, in_place: bool
) -> tuple[Array, Array]:
    """A rank's ``in`` and ``out``, filled with zeros; in place, the smaller lies in the larger."""
    sizes = [layout.elements(rank, b, elements) for b in (Buffer.IN, Buffer.OUT)]
    if not in_place:
        found = [allocate(4 * n).view(np.float32) for n in sizes]
        for array in found:
            array[:] = 0
        return found[0], found[1]
    big = allocate(4 * max(sizes)).view(np.float32)
    big[:] = 0
    start = 0 if sizes[0] == sizes[1] else rank * min(sizes)
    small = big[start : start + min(sizes)]
    return (small, big) if sizes[0] < sizes[1] else (big, small)


def _plan(
    name: str,
    collective: str,
    transport: ShmTransport | MpiTransport,
    world: MpiWorld,
    buffers: tuple[Array, Array],
    elements: int,
    in_place: bool,
) -> Plan:
    what = spec(collective)
    name, given = parse(name)
    where = (build(collective, name, world.size, **given), what, transport, world.rank, *buffers)
    return Plan(*where, op("sum") if what.reduces else None, elements, in_place=in_place)


def _call(
    layout: Layout, buffers: tuple[Array, Array], elements: int, in_place: bool
) -> LibraryCall:
    where = {Buffer.IN: buffers[0], Buffer.OUT: buffers[1]}
    used = op("sum") if layout.spec.reduces else None
    return LibraryCall(layout.spec, where, used, elements, in_place=in_place)


def _native(world: MpiWorld, action: Action, loop: bool) -> Turn:
    """A turn of operations timed in the extension: the library's, a plan's, or work sharing's."""

    def turn(n: int) -> list[float]:
        seconds = action.spans(n, Start(world.barrier, loop=loop)).seconds
        return (seconds / n if loop else seconds).tolist()

    return turn


def _rounds(
    world: MpiWorld, turns: dict[str, Turn], given: argparse.Namespace
) -> dict[str, list[float]]:
    """The median of every turn's operations; in each round, every contender has one turn."""

    def slowest(seconds: list[float]) -> float:
        return float(np.median(world.combine(np.array(seconds), "max")))

    number = {}
    for name, turn in turns.items():
        turn(1)
        once = slowest(turn(2))
        # A limit has sweeps of two kinds. Long ones are few, since turns of a round are compared.
        fewest, each = (2, 2 * once) if name == "limit" else (3, once)
        number[name] = max(fewest, min(20_000, int(given.turn / each)))
    times: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(given.rounds):
        for name, turn in turns.items():
            times[name].append(slowest(turn(number[name])))
    return times


if __name__ == "__main__":
    main()
