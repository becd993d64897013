"""One run of `shm_vs_mpi.py`, under mpirun: contenders take turns, rank 0 prints JSON lines.

In a contender's turn every operation stands behind a barrier and is timed on every rank; the
slowest rank's time counts, and the median of the turn, so that one operation during which something
else had the core does not count for the others. Operations too short for that are timed back to
back. Everything a line says was measured in the same minutes on the same processes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from collectives.execution.mpi.transport import MpiTransport
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.plan import Plan
from collectives.execution.roofline import least
from collectives.execution.shm.affinity import AFFINITIES, set_affinity
from collectives.execution.shm.transport import ShmTransport
from collectives.execution.shm.worksharing import WorkSharing
from collectives.execution.transport import Array, LibraryCall, Start
from collectives.schedule.catalogue import build, spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op

SHM = {
    "allreduce": ("sharded_ps", "ring", "one_shot", "recursive_doubling"),
    "reduce_scatter": ("direct", "ring"),
    "allgather": ("direct", "ring"),
    "broadcast": ("flat", "scatter_allgather", "binomial"),
    "alltoall": ("direct", "pairwise"),
}
Turn = Callable[[int], "list[float]"]
"""``turn(n)``: this rank's seconds of each of n operations, or of one of n back to back."""
SHORT = 1 << 16
"""Bytes below which operations are timed back to back."""


def main() -> None:
    """Measure every size and placement asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collective", choices=SHM, default="allreduce")
    parser.add_argument("--bytes", type=int, nargs="+", required=True)
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
    """All contenders at one size: seconds of every round, by name."""
    what, size = spec(given.collective), world.size
    # As nccl-tests count: the size is the whole vector's.
    elements = nbytes // 4 // max(1, what.parts(size))
    names = (given.algorithms or ",".join(SHM[what.name])).split(",")
    if given.collective == "allreduce" and nbytes > 1 << 16 and not given.algorithms:
        names = names[:2]
    with ExitStack() as stack:
        turns: dict[str, Turn] = {}
        layout = Layout(what, size, max(1, what.parts(size)))
        mine = _memory(transport.allocate, layout, world.rank, elements, in_place)
        shared = _shared(transport, layout, mine, elements, in_place)
        stack.callback(shared.close)
        turns["worksharing"] = _native(world, shared, nbytes < SHORT)
        for name in names:
            plan = _plan(name, what.name, transport, world, mine, elements, in_place)
            turns[f"shm {name}"] = _native(world, stack.enter_context(plan), nbytes < SHORT)
        mpi = MpiTransport(world)
        theirs = _memory(mpi.allocate, layout, world.rank, elements, in_place)
        turns["library"] = _python(
            world, library(world, what.name, theirs, in_place), nbytes < SHORT
        )
        if given.mpi_ring:
            plan = _plan("ring", what.name, mpi, world, theirs, elements, in_place)
            turns["mpi ring"] = _python(world, stack.enter_context(plan), nbytes < SHORT)
        if nbytes >= 1 << 20:
            # Zeros are copied, written and joined with themselves: buffers stay as they are.
            needed = least(layout, elements, 4, in_place)
            turns["limit"] = lambda n: [transport.roofline(*mine, n).seconds(needed)]
        times = _rounds(world, turns, given)
    return {
        "collective": what.name,
        "library": world.library(),
        "ranks": size,
        "bytes": nbytes,
        "in_place": in_place,
        "factor": what.bus_factor(size),
        "times": times,
    }


def _memory(
    allocate: Callable[[int], Array], layout: Layout, rank: int, elements: int, in_place: bool
) -> tuple[Array, Array]:
    """A rank's ``in`` and ``out`` of zeros; in place the smaller lies in the larger."""
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
    where = (build(collective, name, world.size), what, transport, world.rank, *buffers)
    return Plan(*where, op("sum") if what.reduces else None, elements, in_place=in_place)


def _shared(
    transport: ShmTransport,
    layout: Layout,
    buffers: tuple[Array, Array],
    elements: int,
    in_place: bool,
) -> WorkSharing:
    where = {Buffer.IN: buffers[0], Buffer.OUT: buffers[1]}
    used = op("sum") if layout.spec.reduces else None
    return WorkSharing(
        transport, LibraryCall(layout.spec, where, used, elements, in_place=in_place)
    )


def _native(world: MpiWorld, plan: Plan | WorkSharing, loop: bool) -> Turn:
    def turn(n: int) -> list[float]:
        seconds = plan.spans(n, Start(world.barrier, loop=loop)).seconds
        return (seconds / n if loop else seconds).tolist()

    return turn


def _python(world: MpiWorld, call: Callable[[], object], loop: bool) -> Turn:
    def turn(n: int) -> list[float]:
        times = []
        for _ in range(1 if loop else n):
            world.barrier()
            start = time.perf_counter()
            for _ in range(n if loop else 1):
                call()
            times.append((time.perf_counter() - start) / (n if loop else 1))
        return times

    return turn


def library(
    world: MpiWorld, collective: str, buffers: tuple[Array, Array], in_place: bool
) -> Callable[[], object]:
    """MPI's own collective over the buffers."""
    comm, mpi, (source, target) = world.comm, world.mpi, buffers
    first = mpi.IN_PLACE if in_place else source
    if collective == "allreduce":
        return lambda: comm.Allreduce(first, target)
    if collective == "reduce_scatter":
        # In place MPI leaves the result at the buffer's start; the bytes are the same.
        return lambda: comm.Reduce_scatter_block(first, source if in_place else target)
    if collective == "allgather":
        return lambda: comm.Allgather(first, target)
    if collective == "alltoall":
        return lambda: comm.Alltoall(first, target)
    return lambda: comm.Bcast(source if world.rank == 0 else target)


def _rounds(
    world: MpiWorld, turns: dict[str, Turn], given: argparse.Namespace
) -> dict[str, list[float]]:
    """The median of every turn's operations; in a round everyone has a turn."""

    def slowest(seconds: list[float]) -> float:
        return float(np.median(world.combine(np.array(seconds), "max")))

    number = {}
    native = {name for name in turns if name.startswith("shm") or name == "worksharing"}
    for name, turn in turns.items():
        turn(1)
        once = slowest(turn(2))
        # Six sweeps make a limit. Few of long ones: turns of a round are compared with each other.
        fewest, each = (2, 6 * once) if name == "limit" else (3 if name in native else 1, once)
        number[name] = max(fewest, min(20_000, int(given.turn / each)))
    times: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(given.rounds):
        for name, turn in turns.items():
            times[name].append(slowest(turn(number[name])))
    return times


if __name__ == "__main__":
    main()
