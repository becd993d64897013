"""All ranks' programs as one ordered list of tasks over places in shared memory.

A task is one pass: its targets become the reduction of its sources. Doing the tasks one after the
other in their order would be right; what may overlap is worked out in `collectives.execution.shm.dependences`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from collectives.execution.program import Program
from collectives.schedule.moves import Buffer

__all__ = ["Place", "Task", "encode", "ordered"]

Json = Any


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


def encode(program: Program, places: Mapping[Buffer, tuple[int, int]]) -> Json:
    """A program as JSON, its spans as [segment, first element, size].

    ``places``: the segment of each buffer, and the element there at which it begins.
    """

    def at(span: Any) -> list[int]:
        segment, start = places[span.buffer]
        return [segment, start + span.start, span.size]

    def local(moves: Iterable[Any]) -> Json:
        return [[at(m.span), at(m.source), m.reduce] for m in moves if m.span.size]

    return [
        {
            "number": step.number,
            "before": local(step.before),
            "sends": [[s.peer, at(s.span)] for s in step.sends],
            "receives": [
                [r.peer, at(r.span), None if r.other is None else at(r.other), r.late]
                for r in step.receives
            ],
            "after": local(step.after),
        }
        for step in program.steps
    ]


@dataclass
class _Sum:
    """Receives of one step into one span, joined: one pass over all their messages."""

    other: list[int] | None
    late: bool
    messages: list[Place] = field(default_factory=list)


class _Reader:
    """Turns encoded programs into tasks; the n-th send of a pair meets its n-th receive."""

    def __init__(self, programs: Sequence[Json]) -> None:
        self.mail: dict[tuple[int, int], deque[Place]] = {}
        self.tasks: list[Task] = []
        for rank, steps in enumerate(programs):
            for step in steps:
                for peer, (segment, start, _) in step["sends"]:
                    place = Place(rank, segment, start)
                    self.mail.setdefault((rank, peer), deque()).append(place)

    def locals(self, rank: int, when: tuple[int, int], moves: Json) -> None:
        for span, source, reduce in moves:
            target = Place(rank, span[0], span[1])
            read = Place(rank, source[0], source[1])
            sources = (target, read) if reduce else (read,)
            self.tasks.append(Task(rank, when, span[2], (target,), sources))

    def receives(self, rank: int, number: int, receives: Json) -> None:
        sums: dict[tuple[int, ...], _Sum] = {}
        for peer, span, other, late in receives:
            message = self.mail[peer, rank].popleft()
            joined = sums.setdefault(tuple(span), _Sum(other, late))
            joined.messages.append(message)
        for span, joined in sums.items():
            target = (Place(rank, span[0], span[1]),)
            o = joined.other
            own = () if o is None else (Place(rank, o[0], o[1]),)
            sources = (*own, *joined.messages)
            when = (number, 3 if joined.late else 2)
            self.tasks.append(
                Task(rank, when, span[2], target, sources, joined.late, o is not None)
            )


def ordered(programs: Sequence[Json]) -> list[Task]:
    """The tasks of all ranks' encoded programs in an order in which one could do them.

    Within a step: copies before it (phase 0), late messages put aside (1, by `flow`), the other
    receives (2), late ones (3), copies after it (4).
    """
    reader = _Reader(programs)
    for rank, steps in enumerate(programs):
        for step in steps:
            number = step["number"]
            reader.locals(rank, (number, 0), step["before"])
            reader.receives(rank, number, step["receives"])
            reader.locals(rank, (number, 4), step["after"])
    return sorted(reader.tasks, key=lambda task: task.when)
