"""One rank's program as a list of calls: for each step an exchange, then a kernel for each slot.

A port sends the messages: by NCCL's groups, or by MPI's requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from collectives.execution.gpu.action import DeviceBuffers
from collectives.execution.gpu.device import Call, DeviceArray
from collectives.execution.gpu.lane import Lane
from collectives.execution.program import Local, Program, ProgramStep, Receive, Span
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op

_ALIGN = 256


def staging_bytes(program: Program, itemsize: int) -> int:
    """Staging bytes of the step that needs most.

    Staged are messages that are added to other data, and messages whose target is still read by
    a send of the same step (``late`` in `Receive`).
    """
    steps = [
        sum(_room(r.span.size * itemsize) for r in step.receives if _waits(r))
        for step in program.steps
    ]
    return max(steps, default=0)


def _waits(receive: Receive) -> bool:
    return receive.other is not None or receive.late


def _room(nbytes: int) -> int:
    """Bytes of the staging for a message: rounded up, with room for any alignment in 16 bytes."""
    return -(-nbytes // _ALIGN) * _ALIGN + _ALIGN


class Port(Protocol):
    """Sends and receives the messages of one rank."""

    lane: Lane

    def send(self, view: DeviceArray, peer: int) -> Any:
        """Prepare a message to another rank."""

    def receive(self, view: DeviceArray, peer: int) -> Any:
        """Prepare a message from another rank."""

    def exchange(self, messages: list[Any]) -> Call:
        """A call that exchanges prepared messages at once; a pair's messages keep their order."""


@dataclass
class _Join:
    """One kernel of a step, which sets ``span`` to ``first`` reduced with all messages."""

    span: Span
    first: Span | None
    messages: list[DeviceArray]


class _Binder:
    """Makes a program's calls on one set of buffers."""

    def __init__(
        self, port: Port, buffers: DeviceBuffers, room: DeviceArray, op: Op | None
    ) -> None:
        self._port, self._buffers, self._room, self._op = port, buffers, room, op
        self._lane = port.lane

    def view(self, span: Span) -> DeviceArray:
        return self._buffers[span.buffer][span.start : span.stop]

    def local(self, move: Local) -> list[Call]:
        target, source = self.view(move.span), self.view(move.source)
        if move.reduce:
            return self._lane.kernels.reduce(target, target, [source], self._op)
        return [self.copy(target, source)]

    def copy(self, target: DeviceArray, source: DeviceArray) -> Call:
        at, come, n = target.address, source.address, target.nbytes
        return partial(self._lane.device.copy, at, come, n, self._lane.stream)

    def step(self, step: ProgramStep) -> list[Call]:
        calls = [call for move in step.before for call in self.local(move)]
        port = self._port
        messages = [port.send(self.view(send.span), send.peer) for send in step.sends]
        landed = self._landings(step.receives)
        for receive, into in zip(step.receives, landed, strict=True):
            messages.append(port.receive(into, receive.peer))
        if messages:
            calls.append(port.exchange(messages))
        for join in _joins(step.receives, landed):
            calls += self._join(join)
        return calls + [call for move in step.after for call in self.local(move)]

    def _landings(self, receives: list[Receive]) -> list[DeviceArray]:
        """Where each message arrives: in its target, or in staging with the target's alignment."""
        targets: list[DeviceArray] = []
        at = 0
        for receive in receives:
            target = self.view(receive.span)
            if _waits(receive):
                start = at + target.address % 16
                at += _room(target.nbytes)
                target = self._room[start : start + target.nbytes].view(target.dtype)
            targets.append(target)
        return targets

    def _join(self, join: _Join) -> list[Call]:
        target = self.view(join.span)
        if join.first is None:
            return [self.copy(target, join.messages[0])]
        return self._lane.kernels.reduce(target, self.view(join.first), join.messages, self._op)


def _joins(receives: list[Receive], landed: list[DeviceArray]) -> list[_Join]:
    """The kernels for messages in staging; messages to one span of a buffer are handled together.

    A message joins an earlier message's kernel if its span is the same and no kernel between them
    writes to it, so that the order of writes stays as in the program.
    """
    joins: list[_Join] = []
    for receive, message in zip(receives, landed, strict=True):
        if not _waits(receive):
            continue
        same = [i for i, join in enumerate(joins) if join.span.meets(receive.span)]
        last = joins[same[-1]] if same else None
        adds = receive.other == receive.span
        if last is not None and adds and last.span == receive.span and last.first is not None:
            last.messages.append(message)
        else:
            joins.append(_Join(receive.span, receive.other, [message]))
    return joins


def bind(
    port: Port, program: Program, buffers: DeviceBuffers, room: DeviceArray, op: Op | None
) -> list[Call]:
    """The calls that run a rank's program once.

    ``port``: sends and receives this rank's messages. ``room``: memory for messages before they are
    added. ``op``: the reduction; None for a collective that only copies. Raises Unsupported if the
    device cannot add the type.
    """
    binder = _Binder(port, buffers, room, op)
    calls = [call for step in program.steps for call in binder.step(step)]
    target = buffers[Buffer.OUT]
    if op is not None and op.mean and target.size:
        calls.append(port.lane.kernels.divide(target, port.lane.world.size))
    return calls
