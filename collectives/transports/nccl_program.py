"""One rank's program as calls that enqueue it: groups of messages, then a kernel a slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from collectives.gpu.action import DeviceBuffers
from collectives.gpu.array import DeviceArray
from collectives.moves import Buffer
from collectives.ops import Op
from collectives.program import Local, Program, ProgramStep, Receive, Span

if TYPE_CHECKING:
    from collectives.transports.nccl import NcclTransport

__all__ = ["bind", "staging_bytes"]

Call = Callable[[], Any]
BYTES = 1  # ncclUint8: a message is bytes, whatever its elements
_ALIGN = 256


def staging_bytes(program: Program, itemsize: int) -> int:
    """Bytes that messages wait in before they are added or may be written, of the fullest step."""
    steps = [
        sum(_room(r.span.size * itemsize) for r in step.receives if _waits(r))
        for step in program.steps
    ]
    return max(steps, default=0)


def _waits(receive: Receive) -> bool:
    return receive.other is not None or receive.late


def _room(nbytes: int) -> int:
    """A message's share of the staging: from any place within 16 bytes, so twice a border."""
    return -(-nbytes // _ALIGN) * _ALIGN + _ALIGN


@dataclass
class _Join:
    """What becomes of one slot: ``first`` joined with all messages, in one pass."""

    span: Span
    first: Span | None
    messages: list[DeviceArray]


class _Binder:
    """Makes a program's calls on one set of buffers."""

    def __init__(
        self, transport: NcclTransport, buffers: DeviceBuffers, room: DeviceArray, op: Op | None
    ) -> None:
        self._transport, self._buffers, self._room, self._op = transport, buffers, room, op
        self._device, self._lane = transport.device, transport.lane
        self._stream = transport.lane.stream

    def view(self, span: Span) -> DeviceArray:
        return self._buffers[span.buffer][span.start : span.stop]

    def local(self, move: Local) -> list[Call]:
        target, source = self.view(move.span), self.view(move.source)
        if move.reduce:
            return self._lane.kernels.reduce(target, target, [source], self._op)
        return [self.copy(target, source)]

    def copy(self, target: DeviceArray, source: DeviceArray) -> Call:
        at, come, n = target.address, source.address, target.nbytes
        return partial(self._device.copy, at, come, n, self._stream)

    def step(self, step: ProgramStep) -> list[Call]:
        calls = [call for move in step.before for call in self.local(move)]
        comm, stream = self._transport.comm, self._stream.ptr
        messages: list[Call] = []
        for send in step.sends:
            view = self.view(send.span)
            messages.append(partial(comm.send, view.address, view.nbytes, BYTES, send.peer, stream))
        landed = self._landings(step.receives)
        for receive, into in zip(step.receives, landed, strict=True):
            messages.append(
                partial(comm.recv, into.address, into.nbytes, BYTES, receive.peer, stream)
            )
        if messages:
            calls.append(partial(self._transport.group, messages))
        for join in _joins(step.receives, landed):
            calls += self._join(join)
        return calls + [call for move in step.after for call in self.local(move)]

    def _landings(self, receives: list[Receive]) -> list[DeviceArray]:
        """Where each message lands: in its place, or in the staging, as its place is aligned."""
        found: list[DeviceArray] = []
        at = 0
        for receive in receives:
            target = self.view(receive.span)
            if _waits(receive):
                start = at + target.address % 16
                at += _room(target.nbytes)
                target = self._room[start : start + target.nbytes].view(target.dtype)
            found.append(target)
        return found

    def _join(self, join: _Join) -> list[Call]:
        target = self.view(join.span)
        if join.first is None:
            return [self.copy(target, join.messages[0])]
        return self._lane.kernels.reduce(target, self.view(join.first), join.messages, self._op)


def _joins(receives: list[Receive], landed: list[DeviceArray]) -> list[_Join]:
    """What is done with the messages that were put aside; those for one slot together.

    A message joins an earlier one's pass when its slot is the same and nothing between them touches
    that slot, so that the order of writes stays what the program says.
    """
    found: list[_Join] = []
    for receive, message in zip(receives, landed, strict=True):
        if not _waits(receive):
            continue
        same = [i for i, join in enumerate(found) if _meet(join.span, receive.span)]
        last = found[same[-1]] if same else None
        adds = receive.other == receive.span
        if last is not None and adds and last.span == receive.span and last.first is not None:
            last.messages.append(message)
        else:
            found.append(_Join(receive.span, receive.other, [message]))
    return found


def _meet(a: Span, b: Span) -> bool:
    return a.buffer == b.buffer and a.start < b.stop and b.start < a.stop


def bind(
    transport: NcclTransport,
    program: Program,
    buffers: DeviceBuffers,
    room: DeviceArray,
    op: Op | None,
) -> list[Call]:
    """The calls that carry a program out once; ``room`` is its staging.

    Raises Unsupported where the device cannot add the type.
    """
    binder = _Binder(transport, buffers, room, op)
    calls = [call for step in program.steps for call in binder.step(step)]
    target = buffers[Buffer.OUT]
    if op is not None and op.mean and target.size:
        calls.append(transport.lane.kernels.divide(target, transport.world.size))
    return calls
