"""Threads of one process: a message is a view of the sender's buffer, read by the receiver.

This is the simplest transport; results of the others are compared with it.
"""

from __future__ import annotations

import time
from typing import cast

import numpy as np
from numpy.typing import NDArray

from collectives.execution.inproc.world import InprocWorld
from collectives.execution.program import Local, Program, ProgramStep, Span
from collectives.execution.transport import (
    Action,
    Array,
    Buffers,
    Tell,
    TracedMessage,
    Transport,
    host_memory,
)
from collectives.schedule.ops import Op


class InprocTransport(Transport):
    """The transport for ranks that are threads of one process; see `Transport` for the methods."""

    name = "inproc"

    def __init__(self, world: InprocWorld) -> None:
        self._world = world

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Plain host memory."""
        return host_memory(nbytes)

    def prepare(self, program: Program, buffers: Buffers, op: Op | None) -> Action:
        """Bind one rank's program to its buffers, see `Transport.prepare`."""
        return _InprocAction(self._world, program, buffers, op)


class _InprocAction(Action):
    """A rank's program over slices of its buffers and queues to other threads; see `Action`."""

    def __init__(
        self, world: InprocWorld, program: Program, buffers: Buffers, op: Op | None
    ) -> None:
        self._world, self._program, self._buffers = world, program, buffers
        self._add = np.add if op is None else op.ufunc
        self._sent = self._received = 0

    def __call__(self) -> None:
        for step in self._program.steps:
            self._step(step)

    def traced(self, tell: Tell) -> None:
        for step in self._program.steps:
            self._step(step, tell)

    @property
    def sent(self) -> int:
        return self._sent

    @property
    def received(self) -> int:
        return self._received

    def _view(self, span: Span) -> Array:
        return self._buffers[span.buffer][span.start : span.stop]

    def _local(self, move: Local) -> None:
        target, source = self._view(move.span), self._view(move.source)
        if move.reduce:
            self._add(target, source, out=target)
        else:
            np.copyto(target, source)

    def _step(self, step: ProgramStep, tell: Tell | None = None) -> None:
        """Run one step. ``tell`` gets each message; a sent one when it is acknowledged."""
        shared = self._world.shared
        me, data, acks = self._world.rank, shared.data, shared.acks
        for move in step.before:
            self._local(move)
        begun = []
        for send in step.sends:
            view = self._view(send.span)
            begun.append((time.perf_counter() if tell else 0.0, view.nbytes))
            data.put(me, send.peer, view)
            self._sent += view.nbytes
        late: list[tuple[Array, Array | None, Array]] = []
        for receive in step.receives:
            start = time.perf_counter() if tell else 0.0
            message = cast(Array, data.get(receive.peer, me, me))
            self._received += message.nbytes
            if tell:
                tell(_ended("from", receive.peer, message.nbytes, step.number, start))
            target = self._view(receive.span)
            other = None if receive.other is None else self._view(receive.other)
            if receive.late:
                late.append((target, other, message.copy()))
            else:
                self._apply(target, other, message)
            acks.put(me, receive.peer, None)
        for send, (start, nbytes) in zip(step.sends, begun, strict=True):
            acks.get(send.peer, me, me)
            if tell:
                tell(_ended("to", send.peer, nbytes, step.number, start))
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
        """Do nothing; no resources are held."""


def _ended(way: str, peer: int, nbytes: int, step: int, start: float) -> TracedMessage:
    return TracedMessage(way, peer, nbytes, step, start, time.perf_counter())
