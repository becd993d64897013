"""All ranks' programs as one ordered list of tasks over places in shared memory.

A task is one pass: its targets become the reduction of its sources. Doing the tasks one after the
other in their order would be right; what may overlap is worked out in
`collectives.execution.shm.dependences`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from collectives.execution.program import Local, Program, Span
from collectives.execution.world import Json
from collectives.schedule.moves import Buffer


class SegmentSpan(NamedTuple):
    """Elements of one of a rank's segments: which segment, the first element, and how many."""

    segment: int
    start: int
    size: int


class PlacedCopy(NamedTuple):
    """`collectives.execution.program.Local` in segments."""

    span: SegmentSpan
    source: SegmentSpan
    reduce: bool


class PlacedSend(NamedTuple):
    """`collectives.execution.program.Send` in segments."""

    peer: int
    span: SegmentSpan


class PlacedReceive(NamedTuple):
    """`collectives.execution.program.Receive` in segments."""

    peer: int
    span: SegmentSpan
    other: SegmentSpan | None
    late: bool


class PlacedStep(NamedTuple):
    """A step of a rank's program whose spans lie in segments: what ranks tell each other of it."""

    number: int
    before: list[PlacedCopy]
    sends: list[PlacedSend]
    receives: list[PlacedReceive]
    after: list[PlacedCopy]


class Place(NamedTuple):
    """Elements of a rank's segment, from ``start`` on (how many, the task says)."""

    rank: int
    segment: int
    start: int


@dataclass(frozen=True)
class Task:
    """Done by ``rank``: every target becomes the reduction of all sources (one: a copy).

    ``late``: a target is read by other tasks of the same step, so the messages are put aside
    first. ``other`` is the first source then, unless the message is plain (``other`` False).
    ``when`` orders tasks: (step, phase).
    """

    rank: int
    when: tuple[int, int]
    size: int
    targets: tuple[Place, ...]
    sources: tuple[Place, ...]
    late: bool = False
    other: bool = False

    def shifted(self, by: int, size: int) -> Task:
        """The part of the task that begins ``by`` elements in."""

        def move(places: tuple[Place, ...]) -> tuple[Place, ...]:
            return tuple(p._replace(start=p.start + by) for p in places)

        return replace(self, size=size, targets=move(self.targets), sources=move(self.sources))


def placed(program: Program, places: Mapping[Buffer, tuple[int, int]]) -> list[PlacedStep]:
    """A program's steps in segments, as tuples that are JSON.

    ``places``: the segment of each buffer, and the element there at which it begins.
    """

    def at(span: Span) -> SegmentSpan:
        segment, start = places[span.buffer]
        return SegmentSpan(segment, start + span.start, span.size)

    def local(moves: Iterable[Local]) -> list[PlacedCopy]:
        return [PlacedCopy(at(m.span), at(m.source), m.reduce) for m in moves if m.span.size]

    return [
        PlacedStep(
            step.number,
            local(step.before),
            [PlacedSend(s.peer, at(s.span)) for s in step.sends],
            [
                PlacedReceive(r.peer, at(r.span), None if r.other is None else at(r.other), r.late)
                for r in step.receives
            ],
            local(step.after),
        )
        for step in program.steps
    ]


def decoded(steps: Json) -> list[PlacedStep]:
    """What `placed` gave, after JSON has made lists of its tuples."""

    def local(moves: Json) -> list[PlacedCopy]:
        return [
            PlacedCopy(SegmentSpan(*span), SegmentSpan(*source), add) for span, source, add in moves
        ]

    return [
        PlacedStep(
            number,
            local(before),
            [PlacedSend(peer, SegmentSpan(*span)) for peer, span in sends],
            [
                PlacedReceive(
                    peer, SegmentSpan(*span), None if other is None else SegmentSpan(*other), late
                )
                for peer, span, other, late in receives
            ],
            local(after),
        )
        for number, before, sends, receives, after in steps
    ]


@dataclass
class _Sum:
    """Receives of one step into one span, joined: one pass over all their messages."""

    other: SegmentSpan | None
    late: bool
    messages: list[Place] = field(default_factory=list)


class _Reader:
    """Turns placed programs into tasks; the n-th send of a pair meets its n-th receive."""

    def __init__(self, programs: Sequence[Sequence[PlacedStep]]) -> None:
        self.mail: dict[tuple[int, int], deque[Place]] = {}
        self.tasks: list[Task] = []
        for rank, steps in enumerate(programs):
            for step in steps:
                for peer, span in step.sends:
                    place = Place(rank, span.segment, span.start)
                    self.mail.setdefault((rank, peer), deque()).append(place)

    def locals(self, rank: int, when: tuple[int, int], moves: Iterable[PlacedCopy]) -> None:
        for span, source, reduce in moves:
            target = Place(rank, span.segment, span.start)
            read = Place(rank, source.segment, source.start)
            sources = (target, read) if reduce else (read,)
            self.tasks.append(Task(rank, when, span.size, (target,), sources))

    def receives(self, rank: int, number: int, receives: Iterable[PlacedReceive]) -> None:
        sums: dict[SegmentSpan, _Sum] = {}
        for peer, span, other, late in receives:
            message = self.mail[peer, rank].popleft()
            joined = sums.setdefault(span, _Sum(other, late))
            joined.messages.append(message)
        for span, joined in sums.items():
            target = (Place(rank, span.segment, span.start),)
            o = joined.other
            own = () if o is None else (Place(rank, o.segment, o.start),)
            sources = (*own, *joined.messages)
            when = (number, 3 if joined.late else 2)
            self.tasks.append(
                Task(rank, when, span.size, target, sources, joined.late, o is not None)
            )


def ordered(programs: Sequence[Sequence[PlacedStep]]) -> list[Task]:
    """The tasks of all ranks' placed programs in an order in which one could do them.

    Within a step: copies before it (phase 0), late messages put aside (1, by `flow`), the other
    receives (2), late ones (3), copies after it (4).
    """
    reader = _Reader(programs)
    for rank, steps in enumerate(programs):
        for step in steps:
            reader.locals(rank, (step.number, 0), step.before)
            reader.receives(rank, step.number, step.receives)
            reader.locals(rank, (step.number, 4), step.after)
    return sorted(reader.tasks, key=lambda task: task.when)
