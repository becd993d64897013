"""One transport for node and network: random schedules, hosts and orders of events never deadlock.

The binder's own lists of calls are carried out here, on an MPI without a process: a message is
copied at a moment of the test's choice between the start of both ends and the first wait for it.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import partial
from graphlib import TopologicalSorter
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import native
from busbar.errors import ScheduleError
from collectives.execution.lower import lower
from collectives.execution.mpi import transport
from collectives.execution.mpi.calls import Call, Flag, Pull, Requests
from collectives.execution.mpi.transport import Segments
from collectives.execution.program import Program
from collectives.execution.registry import TransportRequest, transports
from collectives.execution.shm_mpi.binding import HostBinder, Neighbours
from collectives.execution.transport import Array
from collectives.schedule.catalogue import spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer, Move, Slot
from collectives.schedule.ops import op
from collectives.schedule.schedule import Schedule
from collectives.schedule.verify import verify
from tests.collectives.drawn import OVERLAP, fill, overlapping, right
from tests.conftest import REPO, Mpi, Run, examples, thorough, under
from tests.together import together

ELEMENTS = 3


class Request(NamedTuple):
    """A persistent request: who sends to whom with which tag, and this end's memory."""

    number: int
    key: tuple[int, int, int]
    sends: bool
    memory: Array

    def Start(self) -> None: ...  # noqa: D102, N802
    def Wait(self) -> None: ...  # noqa: D102, N802


def _world(rank: int, size: int, numbers: Iterator[int]) -> Any:
    """As much of an MPI world as a binder uses."""

    def sends(buffer: list[Any], peer: int, tag: int) -> Request:
        return Request(next(numbers), (rank, peer, tag), True, buffer[0])

    def receives(buffer: list[Any], peer: int, tag: int) -> Request:
        return Request(next(numbers), (peer, rank, tag), False, buffer[0])

    comm = SimpleNamespace(rank=rank, size=size, Send_init=sends, Recv_init=receives)
    together = SimpleNamespace(Waitall=list, Startall=list)
    mpi = SimpleNamespace(BYTE=None, Request=together, Prequest=together)
    return SimpleNamespace(rank=rank, mpi=mpi, comm=comm)


class Do(NamedTuple):
    """An event of a rank: ``kind`` is start, wait (of requests), raise, await (a word) or work."""

    kind: str
    what: Any


def _events(calls: Sequence[Call]) -> Iterator[Do]:
    for call in calls:
        if isinstance(call, Pull):
            yield from _events(call.calls)
        elif isinstance(call, Requests):
            for message in call.messages:
                yield Do("wait" if call.waits else "start", message.request)
        elif isinstance(call, Flag):
            yield Do("await" if call.waits else "raise", call)
        else:
            yield Do("work", call)


def bound(
    nodes: Sequence[int], programs: Sequence[Program], buffers: Sequence[Any], segment: int
) -> list[list[Do]]:
    """The events of every rank; ``nodes``: each rank's host."""
    size, numbers = len(nodes), count()
    ready, taken = {r: 2 * r for r in range(size)}, {r: 2 * r + 1 for r in range(size)}
    period = max((step.number for p in programs for step in p.steps), default=0) + 2

    def messages(peer: int, rank: int) -> Iterator[Array]:
        for step in programs[peer].steps:
            for send in step.sends:
                if send.peer == rank:
                    whole = buffers[peer][send.span.buffer]
                    yield whole[send.span.start : send.span.stop].view(np.uint8)

    def events(rank: int) -> list[Do]:
        others = [r for r, node in enumerate(nodes) if node == nodes[rank] and r != rank]
        near = Neighbours(ready, taken, period, {r: messages(r, rank) for r in others})
        world = _world(rank, size, numbers)
        binder = HostBinder(world, Segments(segment), buffers[rank], op("sum"), near)
        steps = binder.steps(programs[rank])
        moved = 8 * programs[rank].sent(), 8 * programs[rank].received()
        assert (binder.sent, binder.received) == moved
        return list(_events([call for step in steps for call in step.calls]))

    return [events(rank) for rank in range(size)]


def carry_out(ranks: Sequence[Sequence[Do]], seeded: random.Random) -> None:
    """Carry out all events in a random order; AssertionError for a deadlock.

    Some ranks are far ahead of others, and messages over MPI are mostly late.
    """
    eager = [seeded.random() ** 3 for _ in ranks]
    at, words = [0] * len(ranks), defaultdict[int, int](int)
    started = defaultdict[tuple[Any, bool], deque[Request]](deque)
    ended: set[int] = set()
    while True:
        moves = [key for key, _ in list(started) if started[key, True] and started[key, False]]
        ready: list[Any] = list(dict.fromkeys(moves))
        for rank, events in enumerate(ranks):
            if at[rank] < len(events):
                kind, what = events[at[rank]]
                if kind == "wait" and what.number not in ended:
                    continue
                if kind == "await" and words[what.address] < what.value:
                    continue
                ready.append(rank)
        if not ready:
            break
        weights = [0.01 if isinstance(one, tuple) else eager[one] + 1e-6 for one in ready]
        (chosen,) = seeded.choices(ready, weights)
        if isinstance(chosen, tuple):
            send, receive = started[chosen, True].popleft(), started[chosen, False].popleft()
            receive.memory[:] = send.memory
            ended |= {send.number, receive.number}
            continue
        kind, what = ranks[chosen][at[chosen]]
        at[chosen] += 1
        if kind == "start":
            started[what.key, what.sends].append(what)
        elif kind == "raise":
            words[what.address] = what.value
        elif kind == "work":
            what()
    assert at == [len(events) for events in ranks], "deadlock"


def dependences(ranks: Sequence[Sequence[Do]]) -> dict[Any, set[Any]]:
    """What each event needs: the one before it, a word raised, both ends of a message started."""
    graph: dict[Any, set[Any]] = {}
    raised = defaultdict[int, list[tuple[int, Any]]](list)
    starts = defaultdict[Any, list[Any]](list)
    for rank, events in enumerate(ranks):
        for i, (kind, what) in enumerate(events):
            graph[rank, i] = {(rank, i - 1)} if i else set()
            if kind == "raise":
                raised[what.address].append((what.value, (rank, i)))
            if kind == "start":
                starts[what.key, what.sends].append((what.number, (rank, i)))
    pairs = {
        number: {mine, other}
        for (key, sends), some in starts.items()
        for (number, mine), (_, other) in zip(some, starts[key, not sends], strict=True)
    }
    for rank, events in enumerate(ranks):
        for i, (kind, what) in enumerate(events):
            if kind == "wait":
                graph[rank, i] |= pairs[what.number]
            if kind == "await":
                enough = [event for value, event in raised[what.address] if value >= what.value]
                graph[rank, i].add(enough[0])
    return graph


def _moves(n: int, seeded: random.Random) -> list[list[tuple[int, ...]]]:
    """Many moves a step, most of them additions, of which `overlapping` leaves the proper ones.

    Some steps are copies inside the ranks, which lowering puts off.
    """
    steps = []
    for _ in range(seeded.randint(2, 8)):
        inside, step = seeded.random() < 0.4, []
        for _ in range(seeded.randint(n, 4 * n)):
            src, dst, *slots = (seeded.randrange(limit) for limit in (n, n, 3, 3, 3))
            step.append((src, src if inside else dst, *slots, not inside and seeded.random() < 0.7))
        steps.append(step)
    return steps


hosts = st.lists(st.integers(1, 4), min_size=2, max_size=4).flatmap(
    lambda sizes: st.permutations([host for host, n in enumerate(sizes) for _ in range(n)])
)


@examples(200)
@given(
    hosts,
    st.booleans(),
    st.sampled_from([8, 16, 4096]),
    st.sampled_from([16, 1 << 30]),
    st.integers(0, 2**32),
)
def test_no_order_of_events_deadlocks_or_reads_what_is_not_there(
    nodes: list[int], in_place: bool, segment: int, longest: int, seed: int
) -> None:
    """Rule: on 2 to 4 hosts of 1 to 4 ranks results are the naive reading's in every order.

    The graph of what each call needs, in memory and over MPI, has no circle. Messages longer than
    MPI's counts (``longest``) are cut alike at both ends.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(transport, "MOST_BYTES", longest)
        _check_all_orders(nodes, in_place, segment, seed)


def _check_all_orders(nodes: list[int], in_place: bool, segment: int, seed: int) -> None:
    seeded = random.Random(seed)
    n = len(nodes)
    schedule, before, after = overlapping(n, _moves(n, seeded), in_place)
    layout = Layout.of(schedule, OVERLAP)
    try:
        programs = [lower(schedule, layout, r, ELEMENTS, in_place=in_place) for r in range(n)]
    except ScheduleError:  # the one mix that lowering refuses
        return
    buffers = [{b: np.full(p.elements[b], -1, np.int64) for b in Buffer} for p in programs]
    for rank, mine in enumerate(buffers):
        if in_place:
            memory = np.full(3 * ELEMENTS, -1, np.int64)
            mine[Buffer.IN], mine[Buffer.OUT] = memory[: 2 * ELEMENTS], memory[ELEMENTS:]
        fill(rank, mine[Buffer.IN], before, ELEMENTS, in_place)
    events = bound(nodes, programs, buffers, segment)
    results: dict[int, Array] = {}
    for rank, mine in enumerate(buffers):
        events[rank].append(Do("work", partial(_end, results, rank, mine)))
    TopologicalSorter(dependences(events)).prepare()
    carry_out(events, seeded)
    assert all(right(rank, target, after, ELEMENTS) for rank, target in results.items())


@pytest.mark.parametrize("nodes", [(0, 1, 2), (0, 1, 0), (0, 0, 1)])
@pytest.mark.parametrize("segment", [8 * ELEMENTS, 16 * ELEMENTS, 4096])
def test_additions_to_parts_of_the_same_elements_keep_their_order(
    nodes: tuple[int, ...], segment: int
) -> None:
    """Rule: the addition that brings in the rank's own share comes before others that meet it.

    Messages of one and of two chunks arrive in one step, so that one is long and one is short.
    """

    def move(src: int, chunk: int, reduce: bool = True) -> Move:
        return Move(src, 0, Slot(Buffer.IN, chunk), Slot(Buffer.OUT, chunk), reduce)

    own = [move(0, 0, reduce=False), move(0, 1, reduce=False)]
    steps = [own, [move(1, 1), move(2, 0), move(2, 1)], [move(1, 0)]]
    schedule, reduces = Schedule.of(3, 2, steps), spec("reduce")
    verify(schedule, reduces)
    layout = Layout.of(schedule, reduces, 0)
    programs = [lower(schedule, layout, rank, 2 * ELEMENTS) for rank in range(3)]
    buffers = [{b: np.full(p.elements[b], -1, np.int64) for b in Buffer} for p in programs]
    for rank, mine in enumerate(buffers):
        mine[Buffer.IN][:] = rank + 1
    carry_out(bound(nodes, programs, buffers, segment), random.Random(1))
    assert buffers[0][Buffer.OUT].tolist() == [6] * 2 * ELEMENTS


def _end(results: dict[int, Array], rank: int, buffers: Any) -> None:
    """Keep what a rank has at its end, when its memory is its own again."""
    results[rank] = buffers[Buffer.OUT].copy()
    for memory in buffers.values():
        memory[:] = -7


SCRIPT = str(REPO / "tests/collectives/shm_mpi_process.py")
needs_native = pytest.mark.skipif(native.load() is None, reason=native.why_not() or "")


@needs_native
@pytest.mark.parametrize(
    ("mpi", "ranks"),
    [("mpich", 4), ("openmpi", 3), *thorough(("mpich", 6), ("mpich", 8), ("openmpi", 7))],
    indirect=["mpi"],
)
def test_it_is_right_on_real_mpis(mpi: Mpi, run: Run, ranks: int) -> None:
    """Rule: random schedules and algorithms are right on any hosts, of any type and operation.

    Traces tell every message, refusals are the same on all ranks, and waits can be interrupted and
    end at the deadline.
    Where /proc hides other ranks, MPI's windows are the shared memory.
    """
    words = [("right", "6"), ("rest",)]
    words += [("hidden", "1")] if mpi.name == "mpich" else []  # last, for it stays
    for done in together(run, mpi, ranks, *([SCRIPT, *these] for these in words)):
        assert done.returncode == 0 and done.stdout.startswith("right "), done.stderr


@needs_native
def test_auto_takes_it_on_several_hosts(mpich: Mpi, run: Run) -> None:
    """Rule: ranks that share hosts get it by themselves, with the bytes of each kind of path."""
    argv = ["-b", "1K", "-e", "1K", "-n", "2", "-A", "sharded_ps", "--placement", "out"]
    hosts = {"MPIR_CVAR_NUM_CLIQUES": "2"}  # MPICH's own pretence, rank by rank
    done = run(*under(mpich, 4, "-m", "bench.allreduce", *argv), env=hosts)
    assert done.returncode == 0, done.stderr
    assert "sharded_ps (shm+mpi)" in done.stdout
    assert "shm_bytes 2048  mpi_bytes 4096" in done.stdout
    one = run(*under(mpich, 2, "-m", "bench.allreduce", *argv), env=hosts)
    assert "sharded_ps (mpi)" in one.stdout, one.stderr


def test_only_shared_hosts_suit() -> None:
    """Rule: it is for several hosts of which one has several ranks, and not for pairs."""
    entry = transports()["shm+mpi"]
    for nodes, suits in [((0, 0, 1), True), ((0, 0), False), ((0, 1, 2), False)]:
        world: Any = SimpleNamespace(nodes=nodes, size=len(nodes))
        for pairs in (False, True):
            request = TransportRequest("auto", 60.0, {}, lambda _: [], pairs=pairs)
            assert entry.suits(world, request) == (suits and not pairs)
