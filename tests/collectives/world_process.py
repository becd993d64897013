"""One rank under mpirun: groups of ranks, and alarms that nobody waits for."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.run.arena import in_place_starts
from busbar.errors import RankFailure
from collectives.execution.mpi.library import library_calls, native_calls
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.transport import Action, LibraryCall, Start
from collectives.execution.world import World
from collectives.schedule.catalogue import collectives
from collectives.schedule.catalogue import spec as collective
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op
from native import load


def check(world: World) -> None:
    """What holds in every world of four ranks."""
    rank = world.rank
    group = world.split(rank % 2, -rank)  # by descending rank
    assert group.size == 2 and group.gather(rank) == [rank % 2 + 2, rank % 2]
    assert group.broadcast(rank) == rank % 2 + 2
    group.barrier()
    assert world.alarms() == []
    world.barrier()
    if rank == 3:
        world.alarm({"failed": "on purpose"})
        # In a group alarms stay in the group, whose first rank this is.
        group.alarm("for one")
    found: list[object] = []
    stop = time.monotonic() + 60
    while rank != 3 and not found and time.monotonic() < stop:
        found += world.alarms()
    assert found == ([] if rank == 3 else [(3, {"failed": "on purpose"})])
    inner: list[object] = []
    while rank == 1 and not inner and time.monotonic() < stop:
        inner += group.alarms()
    assert inner == ([(0, "for one")] if rank == 1 else [])
    world.barrier()
    assert group.alarms() == [] and world.alarms() == []


def check_calls(world: MpiWorld) -> None:
    """The extension's calls of MPI's collectives do what mpi4py's do, on both kinds of handles."""
    for name in collectives():
        for in_place in (False, True):
            spec = collective(name)
            if name in _WITHOUT or (in_place and not spec.in_place):
                continue
            ran: list[list[NDArray[np.int32]]] = []
            for native in (False, True):
                buffers = _buffers(world, name, in_place)
                how = op("sum") if spec.reduces else None
                calls = library_calls(world, LibraryCall(spec, buffers, how, 6, 1, in_place))
                _once(native_calls(world, calls) if native else None, calls)
                ran.append(list(buffers.values()))
            for one, other in zip(*ran, strict=True):
                assert np.array_equal(one, other), (name, in_place, one, other)


_WITHOUT = ("hypercube",)  # MPI's all-gather by another name


def _buffers(world: MpiWorld, name: str, in_place: bool) -> dict[Buffer, NDArray[np.int32]]:
    """Of 6 elements a part, told apart by rank and place; root 1."""
    layout = Layout(collective(name), world.size, collective(name).parts(world.size), 1)
    n, m = (layout.elements(world.rank, b, 6) for b in (Buffer.IN, Buffer.OUT))
    fresh = np.arange(100 * world.rank, 100 * world.rank + max(n, m), dtype=np.int32)
    if not in_place:
        return {Buffer.IN: fresh[:n].copy(), Buffer.OUT: np.full(m, -1, np.int32)}
    a, b = in_place_starts(layout, world.rank, 6)
    return {Buffer.IN: fresh[a : a + n], Buffer.OUT: fresh[b : b + m]}


def _once(made: Action | None, calls: list[Callable[[], Any]]) -> None:
    if made is None:
        for call in calls:
            call()
        return
    made()
    made.close()


def check_ends(world: MpiWorld) -> None:
    """What MPI refuses is our error; a signal ends a loop; a loop is timed and its calls count."""
    values = np.zeros(2, np.int32)
    kind = world.type_of(values.dtype)
    refused = native_calls(world, [partial(world.comm.Bcast, [values, kind], 99)])
    assert refused is not None
    try:
        refused()
    except RankFailure as error:
        assert f"rank {world.rank}: MPI's collective failed: " in str(error)
    else:
        raise AssertionError("a root that is not there was taken")
    assert native_calls(world, [lambda: None]) is None, "what is no call of MPI stays in Python"
    alone = MpiWorld(world.mpi.COMM_SELF)
    endless = native_calls(alone, [alone.comm.Barrier])
    assert endless is not None
    spans = endless.spans(5, Start(alone.barrier, slower=0.5))
    assert len(spans.begins) == len(spans.ends) == 5 and min(spans.seconds) > 0
    signal.signal(signal.SIGALRM, _raise)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        endless.spans(2**30, Start(alone.barrier, loop=True))
    except KeyboardInterrupt:
        return
    raise AssertionError("the loop did not end")


def _raise(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    mpi = MpiWorld()
    check(mpi)
    if load() is not None:
        check_calls(mpi)
        check_ends(mpi)
    if mpi.rank == 0:
        sys.stdout.write("all right\n")
