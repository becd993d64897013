"""All ranks' programs as one ordered list of tasks over places in shared memory, and passes.

A task becomes one pass over memory, which sets its targets to the reduction of its sources. It
becomes two, with staging between them, if other tasks of its step still read its target.
Executing the tasks in order would be correct. `collectives.execution.shm.dependences` finds out
which passes may overlap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from busbar.errors import Unsupported
from collectives.execution.program import Local, Program, ProgramStep, Receive, Send, Span
from collectives.execution.world import Json
from collectives.schedule.moves import Buffer

EMPTY = -2
"""The segment number of a buffer without elements."""

STAGE = -1
"""The segment number of a rank's private staging; ``start`` of a place is then its slot."""


class Place(NamedTuple):
    """Elements of a rank's segment from ``start`` on; the task has their number."""

    rank: int
    segment: int
    start: int


@dataclass(eq=False)
class Work:
    """A pass: ``rank`` sets ``targets`` to the reduction of ``sources``, ``size`` elements each.

    ``waits``: the tasks that must be done before, as (peer, task number). ``published``: another
    rank waits for this pass. ``cold``: targets that no other pass reads or writes in an iteration,
    so that they need no place in a cache. ``stage``: higher than the stage of every pass of another
    rank that it waits for; stage s of window w is done in round w + s.
    """

    rank: int
    size: int
    targets: list[Place]
    sources: list[Place]
    waits: list[tuple[int, int]] = field(default_factory=list)
    published: bool = False
    cold: set[Place] = field(default_factory=set)
    stage: int = 0

    @property
    def places(self) -> list[Place]:
        """The pass's targets and sources."""
        return [*self.targets, *self.sources]

    @property
    def moved(self) -> int:
        """Elements that the pass reads and writes."""
        return self.size * len(self.places)


@dataclass(frozen=True)
class Task:
    """A task of ``rank``: each target becomes the reduction of all sources (a copy of one).

    ``late``: other tasks of the same step read a target, so the messages are staged first.
    ``other``: the first source is the operand to which messages are added. ``when``: (step, phase),
    the order of tasks.
    """

    rank: int
    when: tuple[int, int]
    size: int
    targets: tuple[Place, ...]
    sources: tuple[Place, ...]
    late: bool = False
    other: bool = False

    def shifted(self, by: int, size: int) -> Task:
        """The part of the task that begins ``by`` elements after its start."""

        def move(places: tuple[Place, ...]) -> tuple[Place, ...]:
            return tuple(p._replace(start=p.start + by) for p in places)

        return replace(self, size=size, targets=move(self.targets), sources=move(self.sources))


@dataclass(frozen=True)
class PlacedProgram:
    """A rank's steps, and the segment and first element of each of its buffers.

    ``fusible``: see `collectives.schedule.schedule.Schedule`.
    """

    rank: int
    steps: Sequence[ProgramStep]
    places: Mapping[Buffer, tuple[int, int]]
    fusible: bool = True

    def at(self, span: Span) -> Place:
        """The place where a span begins."""
        segment, start = self.places[span.buffer]
        return Place(self.rank, segment, start + span.start)

    @property
    def sent(self) -> int:
        """Elements that the rank sends."""
        return sum(send.span.size for step in self.steps for send in step.sends)


def in_scratch(programs: Sequence[PlacedProgram]) -> Callable[[Place], bool] | None:
    """A function that is true for places in their rank's scratch, if scratch has its own segment.

    None for programs whose passes must not be fused.
    """
    if not all(one.fusible for one in programs):
        return None
    segments = {
        (one.rank, one.places[Buffer.SCRATCH][0])
        for one in programs
        if Buffer.SCRATCH in one.places
        and one.places[Buffer.SCRATCH][0]
        not in (one.places[Buffer.IN][0], one.places[Buffer.OUT][0])
    }
    return lambda place: place[:2] in segments


def places_of(
    locate: Callable[[Any], tuple[int, int]], buffers: Mapping[Buffer, Any], itemsize: int
) -> dict[Buffer, tuple[int, int]]:
    """The segment of each buffer, and the element at which the buffer begins there.

    ``locate``: gives the segment of an array, and its offset there in bytes. Raises Unsupported for
    a buffer that begins inside an element.
    """
    places: dict[Buffer, tuple[int, int]] = {}
    for buffer, array in buffers.items():
        key, offset = locate(array) if array.size else (EMPTY, 0)
        if offset % itemsize:
            raise Unsupported(f"a buffer begins {offset} bytes in, not at a whole element")
        places[buffer] = key, offset // itemsize
    return places


_Step = tuple[int, list[Local], list[Send], list[Receive], list[Local]]
_Message = tuple[int, list[_Step], list[tuple[Buffer, tuple[int, int]]], bool]
# Used at import: ranks that are threads may crash msgspec if they are the first to use a type.
msgspec.convert([0, [], [], False], _Message)


def placed_program_json(program: Program, places: Mapping[Buffer, tuple[int, int]]) -> Json:
    """A rank's program and the places of its buffers, for `read_placed_program` on other ranks."""
    steps = [[s.number, s.before, s.sends, s.receives, s.after] for s in program.steps]
    return [program.rank, steps, list(places.items()), program.fusible]


def read_placed_program(what: Json) -> PlacedProgram:
    """Read the result of `placed_program_json`, in which JSON has made lists of tuples."""
    rank, steps, places, fusible = msgspec.convert(what, _Message)
    return PlacedProgram(rank, [ProgramStep(*step) for step in steps], dict(places), fusible)


@dataclass
class _Sum:
    """Receives of one step into one span, to be added together.

    ``late``: the step's sends still read the span.
    """

    other: Place | None
    late: bool
    messages: list[Place] = field(default_factory=list)


class _Reader:
    """Turns placed programs into tasks; the n-th send of a pair matches its n-th receive."""

    def __init__(self, programs: Sequence[PlacedProgram]) -> None:
        self.mail: dict[tuple[int, int], deque[Place]] = {}
        self.tasks: list[Task] = []
        for program in programs:
            for step in program.steps:
                for send in step.sends:
                    line = self.mail.setdefault((program.rank, send.peer), deque())
                    line.append(program.at(send.span))

    def locals(self, of: PlacedProgram, when: tuple[int, int], moves: Iterable[Local]) -> None:
        for span, source, reduce in moves:
            target, read = of.at(span), of.at(source)
            sources = (target, read) if reduce else (read,)
            self.tasks.append(Task(of.rank, when, span.size, (target,), sources))

    def receives(self, of: PlacedProgram, number: int, receives: Iterable[Receive]) -> None:
        sums: dict[tuple[Place, int], _Sum] = {}
        for peer, span, other, late in receives:
            own = None if other is None else of.at(other)
            joined = sums.setdefault((of.at(span), span.size), _Sum(own, late))
            joined.messages.append(self.mail[peer, of.rank].popleft())
        for (target, size), joined in sums.items():
            first = () if joined.other is None else (joined.other,)
            sources = (*first, *joined.messages)
            when = (number, 3 if joined.late else 2)
            self.tasks.append(
                Task(of.rank, when, size, (target,), sources, joined.late, bool(first))
            )


def ordered(programs: Sequence[PlacedProgram]) -> list[Task]:
    """The tasks of all ranks' programs in an order in which one process could run them.

    Phases of a step: copies before it (0); messages into staging whose target the step's sends
    still read (1, by `dependences`); other receives (2); from that staging to the targets (3);
    copies after it (4).
    """
    reader = _Reader(programs)
    for program in programs:
        for step in program.steps:
            reader.locals(program, (step.number, 0), step.before)
            reader.receives(program, step.number, step.receives)
            reader.locals(program, (step.number, 4), step.after)
    return sorted(reader.tasks, key=lambda task: task.when)
