"""Threads of one process: a message is a view of the sender's buffer, read by the receiver.

This is the simplest implementation of programs; the others are compared with it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unsupported
from collectives.execution.inproc.world import InprocWorld
from collectives.execution.program import Local, Program, ProgramStep, Span
from collectives.execution.transport import (
    Action,
    Array,
    Buffers,
    LibraryCall,
    Tell,
    TracedMessage,
    Transport,
)
from collectives.schedule.ops import Op


class InprocTransport(Transport):
    """See `Transport` for the methods."""

    name = "inproc"

    def __init__(self, world: InprocWorld) -> None:
        self._world = world

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Plain host memory."""
        return np.empty(nbytes, np.uint8)

    def staging(self, program: Program, itemsize: int) -> int:
        """The late receives of the step that has most of them."""
        return program.late() * itemsize

    def prepare(self, program: Program, buffers: Buffers, op: Op | None) -> Action:
        """See `Transport.prepare`."""
        return _InprocAction(self._world, program, buffers, op)

    def library(self, call: LibraryCall) -> Action:
        """There is no library among threads: raises Unsupported."""
        raise Unsupported("the inproc transport has no library collective to compare with")


class _InprocAction(Action):
    """A program over views and queues; see `Action` for the methods."""

    def __init__(
        self, world: InprocWorld, program: Program, buffers: Buffers, op: Op | None
    ) -> None:
        self._world, self._program, self._buffers = world, program, buffers
        self._add = np.add if op is None else op.ufunc
        self._sent = self._received = 0
        self._data: _Post = world.shared.data
        self._acks: _Post = world.shared.acks

    def __call__(self) -> None:
        for step in self._program.steps:
            self._step(step)

    def traced(self, tell: Tell) -> None:
        """See `Action.traced`."""
        plain = self._data, self._acks
        told = _ToldMailboxes(*plain, self._world.rank, tell)
        self._data, self._acks = told.data, told.acks
        try:
            for step in self._program.steps:
                told.step = step.number
                self._step(step)
        finally:
            self._data, self._acks = plain

    @property
    def sent(self) -> int:
        """See `Action.sent`."""
        return self._sent

    @property
    def received(self) -> int:
        """See `Action.received`."""
        return self._received

    def _view(self, span: Span) -> Array:
        return self._buffers[span.buffer][span.start : span.stop]

    def _local(self, move: Local) -> None:
        target, source = self._view(move.span), self._view(move.source)
        if move.reduce:
            self._add(target, source, out=target)
        else:
            np.copyto(target, source)

    def _step(self, step: ProgramStep) -> None:
        me, data, acks = self._world.rank, self._data, self._acks
        for move in step.before:
            self._local(move)
        for send in step.sends:
            view = self._view(send.span)
            data.put(me, send.peer, view)
            self._sent += view.nbytes
        late: list[tuple[Array, Array | None, Array]] = []
        for receive in step.receives:
            message = cast(Array, data.get(receive.peer, me, me))
            self._received += message.nbytes
            target = self._view(receive.span)
            other = None if receive.other is None else self._view(receive.other)
            if receive.late:
                late.append((target, other, message.copy()))
            else:
                self._apply(target, other, message)
            acks.put(me, receive.peer, None)
        for send in step.sends:
            acks.get(send.peer, me, me)
        for target, other, message in late:
            self._apply(target, other, message)
        for move in step.after:
            self._local(move)

    def _apply(self, target: Array, other: Array | None, message: Array) -> None:
        if other is None:
            np.copyto(target, message)
        else:
            self._add(other, message, out=target)

    def close(self) -> None:
        """Nothing is held."""


class _Post(Protocol):
    """What an action asks of a mailbox."""

    def put(self, src: int, dst: int, item: object) -> None: ...

    def get(self, src: int, dst: int, rank: int) -> object: ...


class _ToldMailboxes:
    """Two mailboxes that tell of the messages that a rank puts in and takes out.

    A send ends with its acknowledgement. ``step``: of the schedule, where the rank is.
    """

    def __init__(self, data: _Post, acks: _Post, rank: int, tell: Tell) -> None:
        self._rank, self._tell, self.step = rank, tell, 0
        self._begun: dict[int, deque[tuple[float, int]]] = {}
        self.data: _Post = _ToldMailbox(data, self._put, self._got)
        self.acks: _Post = _ToldMailbox(acks, None, self._acknowledged)

    def _put(self, peer: int, item: object) -> None:
        begun = time.perf_counter(), cast(Array, item).nbytes
        self._begun.setdefault(peer, deque()).append(begun)

    def _got(self, peer: int, start: float, item: object) -> None:
        nbytes, now = cast(Array, item).nbytes, time.perf_counter()
        self._tell(TracedMessage("from", peer, nbytes, self.step, start, now))

    def _acknowledged(self, peer: int, _: float, __: object) -> None:
        start, nbytes = self._begun[peer].popleft()
        self._tell(TracedMessage("to", peer, nbytes, self.step, start, time.perf_counter()))


class _ToldMailbox:
    """One of them: who puts and who takes something is told by two functions."""

    def __init__(
        self,
        post: _Post,
        put: Callable[[int, object], None] | None,
        got: Callable[[int, float, object], None],
    ) -> None:
        self._post, self._put, self._got = post, put, got

    def put(self, src: int, dst: int, item: object) -> None:
        if self._put is not None:
            self._put(dst, item)
        self._post.put(src, dst, item)

    def get(self, src: int, dst: int, rank: int) -> object:
        start = time.perf_counter()
        item = self._post.get(src, dst, rank)
        self._got(src if rank == dst else dst, start, item)
        return item
