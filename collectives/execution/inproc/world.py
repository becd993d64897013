"""Ranks as threads of one process: for tests, for machines without MPI, and for a first look."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from busbar.errors import BusbarError, RankFailure, Unavailable
from collectives.execution.world import LATE, How, Json, State, lost

T = TypeVar("T")
_ABORT = object()


class Mailbox:
    """Queues between pairs of ranks. An abort unblocks every rank that waits in `get`."""

    def __init__(self, size: int, deadline: float) -> None:
        self.size, self.deadline = size, deadline
        self._queues: dict[int, SimpleQueue[object]] = {}
        self.failed = threading.Event()

    def _queue(self, src: int, dst: int) -> SimpleQueue[object]:
        """The queue of an ordered pair, created at its first use by either rank."""
        key = src * self.size + dst
        queue = self._queues.get(key)
        return self._queues.setdefault(key, SimpleQueue()) if queue is None else queue

    def put(self, src: int, dst: int, item: object) -> None:
        """Send an item to another rank."""
        self._queue(src, dst).put(item)

    def get(self, src: int, dst: int, rank: int) -> object:
        """Take the next item as ``rank``. Raises RankFailure after the deadline or an abort."""
        queue = self._queue(src, dst)
        if self.failed.is_set():  # a queue that was created later has no abort in it
            queue.put(_ABORT)
        try:
            item = queue.get(timeout=self.deadline)
        except Empty:
            raise lost(rank, src if rank == dst else dst, LATE, self.deadline) from None
        if item is _ABORT:
            raise RankFailure(f"rank {rank} stopped because another rank failed")
        return item

    def abort(self) -> None:
        """Unblock every rank that waits."""
        self.failed.set()
        for queue in list(self._queues.values()):
            queue.put(_ABORT)


class InprocWorld:
    """All ranks of a run that are threads of one process, seen from one rank.

    See `World` for the methods.
    """

    name = "inproc"

    def __init__(self, rank: int, shared: _Shared) -> None:
        self.rank, self.size = rank, shared.size
        self.shared = shared
        self.nodes: Sequence[int] = (0,) * shared.size
        self.states = shared.states

    def exchange(self, value: object) -> list[object]:
        """Every rank's object itself, not a copy, so that threads can share memory."""
        shared = self.shared
        shared.board[self.rank] = value
        self.barrier()
        everyone = list(shared.board)
        self.barrier()
        return everyone

    def broadcast(self, value: Json, root: int = 0) -> Json:
        """The root's value, on every rank."""
        return json.loads(str(self.exchange(json.dumps(value))[root]))

    def gather(self, value: Json) -> list[Json]:
        """Every rank's value, in rank order, on every rank."""
        return [json.loads(str(text)) for text in self.exchange(json.dumps(value))]

    def collect(self, value: Json) -> list[Json]:
        """Every rank's value, in rank order, on rank 0; an empty list on other ranks."""
        everyone = self.exchange(json.dumps(value))
        return [] if self.rank else [json.loads(str(text)) for text in everyone]

    def combine(self, values: NDArray[np.float64], how: How) -> NDArray[np.float64]:
        """Reduce all ranks' arrays elementwise, or take rank 0's; every rank gets the result."""
        stack = np.stack([np.asarray(v) for v in self.exchange(values.copy())])
        if how == "rank0":
            return np.asarray(stack[0])
        if how == "avg":
            return np.asarray(stack.mean(axis=0))
        ufunc = {"sum": np.add, "min": np.minimum, "max": np.maximum}[how]
        return np.asarray(ufunc.reduce(stack, axis=0))

    def barrier(self) -> None:
        """Return when every rank has called this.

        Raises RankFailure when the deadline passes or another rank failed.
        """
        try:
            self.shared.barrier.wait(self.shared.deadline)
        except threading.BrokenBarrierError:
            raise RankFailure(f"rank {self.rank} waited at a barrier in vain") from None

    def rest(self) -> None:
        """Return when every rank has called this; a thread that waits sleeps."""
        self.barrier()

    def send(self, peer: int, values: NDArray[np.float64]) -> None:
        """Send a few numbers to a rank, which must `receive` as many."""
        self.shared.words.put(self.rank, peer, values.copy())

    def receive(self, peer: int, into: NDArray[np.float64]) -> None:
        """Wait for the numbers that rank ``peer`` sends, and write them to ``into``.

        Raises RankFailure when the deadline passes or another rank failed.
        """
        into[:] = cast("NDArray[np.float64]", self.shared.words.get(peer, self.rank, self.rank))

    def alarm(self, value: Json) -> None:
        """Send a message to all other ranks without waiting for them."""
        for rank, queue in enumerate(self.shared.alarms):
            if rank != self.rank:
                queue.put((self.rank, json.dumps(value)))

    def alarms(self) -> list[tuple[int, Json]]:
        """The alarms of other ranks since the last call, as (rank, message)."""
        alarms: list[tuple[int, Json]] = []
        with suppress(Empty):
            while True:
                rank, text = self.shared.alarms[self.rank].get_nowait()
                alarms.append((rank, json.loads(text)))
        return alarms

    def once(self, make: Callable[[], T]) -> T:
        """The result of ``make``, which rank 0 calls for all. All ranks raise what it raises."""
        results: list[T] = []
        error: BusbarError | None = None
        if self.rank == 0:
            try:
                results.append(make())
            except BusbarError as refused:
                error = refused
        everyone = cast("list[tuple[list[T], BusbarError | None]]", self.exchange((results, error)))
        result, refusal = everyone[0]
        if refusal is not None:
            raise refusal
        return result[0]

    def failed(self) -> list[int]:
        """The ranks that an error has ended."""
        return list(self.shared.errors)

    def threads(self) -> None:
        """None: threads of one process use no MPI."""

    def split(self, color: int, key: int) -> InprocWorld:
        """The ranks with the same ``color``, ordered by ``key``. All ranks call this."""
        everyone = self.gather([color, key])
        members = sorted((k, rank) for rank, (c, k) in enumerate(everyone) if c == color)
        first = members[0][1]
        shared = self.shared
        # Created by the group's first rank and passed to the others.
        fresh = _Shared(len(members), shared.deadline, shared) if self.rank == first else None
        group = self.exchange(fresh)[first]
        assert isinstance(group, _Shared)
        return InprocWorld([rank for _, rank in members].index(self.rank), group)

    def abort(self, status: int) -> None:
        """Let the other threads end at their next exchange, see `World.abort`."""
        self.shared.abort()


class _Shared:
    """What the threads of one run share: barrier, mailboxes, and the progress of each rank."""

    def __init__(self, size: int, deadline: float, parent: _Shared | None = None) -> None:
        self.size, self.deadline = size, deadline
        self.board: list[object] = [None] * size
        self.states: dict[int, State] = {}
        self.barrier = threading.Barrier(size)
        self.data = Mailbox(size, deadline)
        self.acks = Mailbox(size, deadline)
        self.words = Mailbox(size, deadline)
        self.alarms: list[SimpleQueue[tuple[int, str]]] = [SimpleQueue() for _ in range(size)]
        self.errors: dict[int, BaseException] = {}  # that ended a rank
        self.groups: list[_Shared] = []
        if parent is not None:
            parent.groups.append(self)

    def abort(self) -> None:
        """Unblock every rank that waits, in groups as well."""
        self.barrier.abort()
        self.data.abort()
        self.acks.abort()
        self.words.abort()
        for group in self.groups:
            group.abort()


def run(size: int, body: Callable[[InprocWorld], T], *, deadline: float = 60.0) -> list[T]:
    """Run ``body(world)`` on ``size`` ranks; rank 0 is the calling thread. Returns all results.

    ``deadline``: seconds that any rank waits for another. The first rank's error ends the others
    and is raised here.
    """
    shared = _Shared(size, deadline)
    results: dict[int, T] = {}
    errors = shared.errors

    def play(rank: int) -> None:
        try:
            results[rank] = body(InprocWorld(rank, shared))
        except BaseException as error:  # noqa: BLE001  (carried to the caller below)
            errors[rank] = error
            shared.abort()

    threads = [threading.Thread(target=play, args=(rank,), daemon=True) for rank in range(1, size)]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:
        shared.abort()
        started = 1 + sum(thread.ident is not None for thread in threads)
        raise Unavailable(f"only {started} of {size} ranks could be started as threads") from None
    play(0)
    for thread in threads:
        thread.join(deadline)
    busy = [rank for rank in range(size) if rank not in results and rank not in errors]
    if errors:
        raise _first_cause(errors)
    if busy:
        shared.abort()
        raise RankFailure(f"rank {busy[0]} was not done {deadline:g} s after rank 0")
    return [results[rank] for rank in range(size)]


def _first_cause(errors: dict[int, BaseException]) -> BaseException:
    """The error that caused the others."""
    causes = [e for e in errors.values() if not isinstance(e, RankFailure)]
    if causes:
        return causes[0]
    late = [e for e in errors.values() if "did not arrive" in str(e)]
    error = (late or list(errors.values()))[0]
    return error if isinstance(error, BusbarError) else RankFailure(str(error))
