"""One rank under mpirun: groups of ranks, and alarms that nobody waits for."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench.run.memory import in_place_starts
from busbar.errors import RankFailure
from collectives.execution.mpi.calls import (
    BoundMessage,
    NativeCalls,
    PersistentCalls,
    bind_calls,
    requests,
)
from collectives.execution.mpi.library import library_calls
from collectives.execution.mpi.windows import ReachedMemory
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.transport import LibraryCall, Start
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
    everyone = [rank % 2 + 2, rank % 2]
    assert group.collect(rank) == (everyone if group.rank == 0 else [])
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


def check_windows(world: MpiWorld) -> None:
    """Memory that puts reach begins at a multiple of 64 bytes, and `locate` finds its place."""
    memory = ReachedMemory(world)
    arrays = [memory.allocate(nbytes) for nbytes in (0, 1, 8, 4096, 4104)]
    for array in arrays:
        window, offset = memory.locate(array)
        assert array.ctypes.data % 64 == 0
        assert np.frombuffer(window.tomemory(), np.uint8)[offset:].ctypes.data == array.ctypes.data
    del array, arrays, window
    memory.trim()
    assert not memory._windows
    memory.close()


def check_splits(world: MpiWorld) -> None:
    """A world that is closed gives its communicators back: MPICH has about 2,000."""
    for _ in range(750):
        world.split(0, world.rank).close()


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
                action = bind_calls(world, calls) if native else PersistentCalls(calls, [], 0, 0)
                assert isinstance(action, NativeCalls) == native, name
                action()
                action.close()
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


def check_ends(world: MpiWorld) -> None:
    """What MPI refuses is our error; a signal ends a loop; a loop is timed and its calls count."""
    values = np.zeros(2, np.int32)
    kind = world.type_of(values.dtype)
    refused = bind_calls(world, [partial(world.comm.Bcast, [values, kind], 99)])
    _refuses(refused, f"rank {world.rank}: MPI's collective failed: ")
    kept = bind_calls(world, [lambda: None])
    assert not isinstance(kept, NativeCalls), "what is no call of MPI stays in Python"
    alone = MpiWorld(world.mpi.COMM_SELF)
    too_long = [_message(alone, np.zeros(1, np.int32), "from"), _message(alone, values, "to")]
    if world.library().startswith("MPICH"):  # Open MPI takes a persistent message that is cut
        _refuses(_messages(alone, too_long), "a message from or to rank 0 failed: ")
    lonely = _messages(alone, [_message(alone, values, "from")])
    seen: list[int | None] = []
    assert lonely.waiting() is None
    _interrupted(lambda: seen.append(lonely.waiting()), lonely)
    assert seen == [0], "the watchdog asks for whom a rank waits"
    assert lonely.waiting() is None, "a wait that was ended is over"
    endless = bind_calls(alone, [alone.comm.Barrier])
    spans = endless.spans(5, Start(alone.barrier, slower=0.5))
    assert len(spans.begins) == len(spans.ends) == 5 and min(spans.seconds) > 0
    _interrupted(lambda: None, lambda: endless.spans(2**30, Start(alone.barrier, loop=True)))
    late = time.perf_counter() + 20
    _interrupted(lambda: None, lambda: endless.spans(1, Start(alone.barrier, [late])))
    assert time.perf_counter() < late, "a signal ends the wait for a time, too"


def _message(world: MpiWorld, values: NDArray[np.int32], way: str) -> BoundMessage:
    """A persistent request of this rank with itself."""
    make = world.comm.Send_init if way == "to" else world.comm.Recv_init
    return BoundMessage(make([values, world.mpi.INT32_T], 0, 7), way, 0, values.nbytes)


def _messages(world: MpiWorld, messages: list[BoundMessage]) -> NativeCalls:
    """Start these messages and wait for them."""
    both = [call for waits in (False, True) for call in requests(world.mpi, messages, waits=waits)]
    action = bind_calls(world, both)
    assert isinstance(action, NativeCalls)
    return action


def _refuses(action: PersistentCalls, words: str) -> None:
    try:
        action()
    except RankFailure as error:
        assert words in str(error), str(error)
    else:
        raise AssertionError(f"taken, without {words}")


def _interrupted(look: Callable[[], object], run: Callable[[], object]) -> None:
    """A signal ends what would not end by itself."""

    def act(number: int, frame: object) -> None:
        look()
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, act)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        run()
    except KeyboardInterrupt:
        return
    raise AssertionError("it did not end")


if __name__ == "__main__":
    mpi = MpiWorld()
    check(mpi)
    check_windows(mpi)
    check_splits(mpi)
    if load() is not None:
        check_calls(mpi)
        check_ends(mpi)
    if mpi.rank == 0:
        sys.stdout.write("all right\n")
