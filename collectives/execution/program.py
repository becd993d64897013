"""One rank's part of a schedule, lowered from chunks to elements, without needless copies.

A program is what transports execute. Each step has the messages that this rank sends, those that it
receives and stores or adds, and copies inside the rank. A program has only buffers and element
ranges: it is independent of the algorithm and of how bytes are moved.

`collectives.execution.lower` makes programs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from collectives.schedule.moves import Buffer


class Span(NamedTuple):
    """Elements ``start`` to ``stop`` of one of the rank's buffers."""

    buffer: Buffer
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Elements in the span."""
        return self.stop - self.start

    def meets(self, other: Span) -> bool:
        """True if both have elements in common."""
        same = self.buffer == other.buffer
        return same and self.start < other.stop and other.start < self.stop


class Send(NamedTuple):
    """A message to ``peer``; ``reduce``: the peer adds it."""

    peer: int
    span: Span
    reduce: bool


class Receive(NamedTuple):
    """A message from ``peer``, and what it does to this rank's ``span``.

    With ``other``, ``span`` becomes ``other`` + message; if the schedule adds to the span itself,
    ``other`` equals ``span``. Without ``other``, ``span`` becomes the message. ``late``: this
    step's sends also read the span, so it may change only after they have left.
    """

    peer: int
    span: Span
    other: Span | None
    late: bool


class Local(NamedTuple):
    """A move inside the rank: copy ``source`` to ``span``, or add it there (``reduce``)."""

    span: Span
    source: Span
    reduce: bool


@dataclass
class ProgramStep:
    """One step of one rank: ``before``, then all messages at once, then ``after``.

    ``number``: the step's number in the schedule, the same for all ranks.
    """

    number: int = 0
    before: list[Local] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    receives: list[Receive] = field(default_factory=list)
    after: list[Local] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.before or self.sends or self.receives or self.after)


@dataclass(frozen=True)
class Program:
    """One rank's steps and the elements that each of its buffers must have.

    ``fusible``: see `collectives.schedule.schedule.Schedule`.
    """

    rank: int
    steps: tuple[ProgramStep, ...]
    elements: dict[Buffer, int]
    fusible: bool = True

    def sent(self) -> int:
        """Elements that this rank sends."""
        return sum(send.span.size for step in self.steps for send in step.sends)

    def received(self) -> int:
        """Elements that this rank receives."""
        return sum(receive.span.size for step in self.steps for receive in step.receives)

    def late(self) -> int:
        """The most elements of one step that arrive in a span which the step's sends still read.

        These must be staged, see `Receive`.
        """
        steps = [sum(r.span.size for r in step.receives if r.late) for step in self.steps]
        return max(steps, default=0)
