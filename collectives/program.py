"""One rank's part of a schedule, lowered from chunks to elements, with needless copies gone.

A program is what transports execute: per step the messages that this rank sends, those that it
receives and what becomes of them, and copies inside the rank. It names buffers and element
ranges only; it knows neither the algorithm nor how bytes travel.

Local copies (of the input to where a rank works, say) are put off until something needs them:
a send reads from where the data still lies, an addition takes its other operand from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from collectives.errors import ScheduleError
from collectives.layout import Elements, Layout
from collectives.moves import Buffer, Moves
from collectives.schedule import Schedule

__all__ = ["Local", "Program", "ProgramStep", "Receive", "Send", "Span", "lower"]


class Span(NamedTuple):
    """Elements ``start`` to ``stop`` of one of the rank's buffers."""

    buffer: Buffer
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Elements in the span."""
        return self.stop - self.start


class Send(NamedTuple):
    """A message to ``peer``; ``reduce`` says that the peer adds it."""

    peer: int
    span: Span
    reduce: bool


class Receive(NamedTuple):
    """A message from ``peer``.

    With ``other``, ``span`` becomes ``other`` + message (``other`` is ``span`` itself where the
    schedule's own slot is the operand); without, it becomes the message. ``late``: the span is
    also read by this step's sends, so it may change only after they have left.
    """

    peer: int
    span: Span
    other: Span | None
    late: bool


class Local(NamedTuple):
    """Inside the rank: ``span`` becomes ``source``, or gains it when ``reduce``."""

    span: Span
    source: Span
    reduce: bool


@dataclass
class ProgramStep:
    """One step of one rank: ``before``, then all messages at once, then ``after``.

    ``number`` is the schedule's own count of steps, the same for all ranks.
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
    """One rank's steps and the elements that each of its buffers must have."""

    rank: int
    steps: tuple[ProgramStep, ...]
    elements: dict[Buffer, int]

    def sent(self) -> int:
        """Elements that this rank sends."""
        return sum(send.span.size for step in self.steps for send in step.sends)

    def received(self) -> int:
        """Elements that this rank receives."""
        return sum(receive.span.size for step in self.steps for receive in step.receives)


class _Pending:
    """Local copies that were asked for and have not happened yet, chunk by chunk.

    ``source[b][c]`` is the chunk (with its buffer) whose data chunk c of buffer b should hold.
    """

    def __init__(self, sizes: dict[Buffer, int]) -> None:
        self.buffer = {b: np.full(n, -1, np.int64) for b, n in sizes.items()}
        self.chunk = {b: np.zeros(n, np.int64) for b, n in sizes.items()}

    def resolve(self, buffer: int, chunk: int, count: int) -> tuple[int, int] | None:
        """Where all of a slot's data lies in one piece, or None when it is scattered."""
        where = self.buffer[Buffer(buffer)][chunk : chunk + count]
        if (where == -1).all():
            return buffer, chunk
        at = self.chunk[Buffer(buffer)][chunk : chunk + count]
        if (where == where[0]).all() and (np.diff(at) == 1).all() and where[0] >= 0:
            return int(where[0]), int(at[0])
        return None


class _Lowering:
    """The state of lowering one rank's moves, step by step."""

    def __init__(
        self, schedule: Schedule, layout: Layout, rank: int, elements: Elements, in_place: bool
    ) -> None:
        self.rank = rank
        self.edges = {b: layout.bounds(rank, b, elements) for b in Buffer}
        if schedule.scratch > layout.nchunks:
            turns = -(-schedule.scratch // layout.nchunks)
            sizes = np.tile(np.diff(self.edges[Buffer.SCRATCH]), turns)[: schedule.scratch]
            self.edges[Buffer.SCRATCH] = np.concatenate([[0], np.cumsum(sizes)])
        elif schedule.scratch < layout.nchunks:
            self.edges[Buffer.SCRATCH] = self.edges[Buffer.SCRATCH][: schedule.scratch + 1]
        self.pending = _Pending({b: len(e) - 1 for b, e in self.edges.items()})
        self.alias = _aliases(layout, rank) if in_place else {}
        # Which chunks have a copy pending that reads a place; entries may be out of date.
        self.readers: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def span(self, buffer: int, chunk: int, count: int) -> Span:
        edges = self.edges[Buffer(buffer)]
        return Span(Buffer(buffer), int(edges[chunk]), int(edges[chunk + count]))

    def same(self, a: tuple[int, int], b: tuple[int, int]) -> bool:
        """Whether two chunks are one place in memory."""
        return self.place(a) == self.place(b)

    def place(self, slot: tuple[int, int]) -> tuple[int, int]:
        """The one name of a chunk that in and out may share in place."""
        return self.alias.get(slot, slot)

    # -- putting copies off, and carrying them out

    def settle(self, buffer: int, chunk: int, count: int, into: list[Local]) -> None:
        """Carry out the copies that are pending into a slot."""
        b = Buffer(buffer)
        todo = np.flatnonzero(self.pending.buffer[b][chunk : chunk + count] >= 0) + chunk
        at, source = self.pending.chunk[b], self.pending.buffer[b]
        i = 0
        while i < len(todo):
            j = i + 1
            while (
                j < len(todo)
                and todo[j] == todo[j - 1] + 1
                and at[todo[j]] == at[todo[j - 1]] + 1
                and source[todo[j]] == source[todo[i]]
            ):
                j += 1
            first, n = int(todo[i]), j - i
            read = self.span(int(source[first]), int(at[first]), n)
            into.append(Local(self.span(b, first, n), read, False))
            i = j
        self.pending.buffer[b][todo] = -1

    def settle_readers(self, buffer: int, chunk: int, count: int, into: list[Local]) -> None:
        """Carry out the copies that still read a slot which is about to change."""
        for c in range(chunk, chunk + count):
            place = self.place((buffer, c))
            for b, reader in self.readers.pop(place, ()):
                slot = self.pending.buffer[Buffer(b)][reader], self.pending.chunk[Buffer(b)][reader]
                if slot[0] >= 0 and self.place((int(slot[0]), int(slot[1]))) == place:
                    self.settle(b, reader, 1, into)

    def put_off(self, row: list[int], into: list[Local]) -> None:
        """A local plain copy: remember it instead of doing it."""
        _, _, sb, sc, db, dc, count, _ = row
        for i in range(count):
            if self.same((sb, sc + i), (db, dc + i)):
                continue
            found = self.pending.resolve(sb, sc + i, 1)
            source = found if found is not None else (sb, sc + i)
            self.settle_readers(db, dc + i, 1, into)
            self.pending.buffer[Buffer(db)][dc + i] = source[0]
            self.pending.chunk[Buffer(db)][dc + i] = source[1]
            self.readers.setdefault(self.place(source), []).append((db, dc + i))


def _aliases(layout: Layout, rank: int) -> dict[tuple[int, int], tuple[int, int]]:
    """In place: chunks of ``in`` that are a chunk of ``out``, by that chunk's name."""
    out = {int(c): i for i, c in enumerate(layout.chunks(rank, Buffer.OUT))}
    mine = layout.chunks(rank, Buffer.IN)
    return {
        (int(Buffer.IN), i): (int(Buffer.OUT), out[int(c)])
        for i, c in enumerate(mine)
        if int(c) in out
    }


def _lower_step(state: _Lowering, number: int, m: Moves) -> ProgramStep:
    step = ProgramStep(number)
    rows = m.table.T.tolist()
    local = [row for row in rows if row[0] == row[1]]
    sent = _send(state, [row for row in rows if row[0] == state.rank != row[1]], step)
    arriving = [row for row in rows if row[1] == state.rank != row[0]]
    if local and (sent or arriving):
        _local_now(state, local, arriving, step)
    for row in arriving:
        _receive(state, row, sent, step)
    if local and not (sent or arriving):
        for row in local:
            if row[7]:
                _local_now(state, [row], [], step)
            else:
                state.put_off(row, step.before)
    step.sends = [s for s in step.sends if s.span.size]
    step.receives = [r for r in step.receives if r.span.size]
    return step


def _send(state: _Lowering, rows: list[list[int]], step: ProgramStep) -> set[tuple[int, int]]:
    """Add the sends; gives the places that they read."""
    read = set()
    for _, dst, sb, sc, _, _, count, reduce in rows:
        found = state.pending.resolve(sb, sc, count)
        if found is None:
            state.settle(sb, sc, count, step.before)
            found = (sb, sc)
        step.sends.append(Send(dst, state.span(*found, count), bool(reduce)))
        read |= {state.place((found[0], found[1] + i)) for i in range(count)}
    return read


def _receive(
    state: _Lowering, row: list[int], sent: set[tuple[int, int]], step: ProgramStep
) -> None:
    src, _, _, _, db, dc, count, reduce = row
    span = state.span(db, dc, count)
    state.settle_readers(db, dc, count, step.before)
    places = {state.place((db, dc + i)) for i in range(count)}
    late = bool(places & sent)
    if not reduce:
        state.pending.buffer[Buffer(db)][dc : dc + count] = -1
        step.receives.append(Receive(src, span, None, late))
        return
    found = state.pending.resolve(db, dc, count)
    if found is None:
        state.settle(db, dc, count, step.before)
        found = (db, dc)
    state.pending.buffer[Buffer(db)][dc : dc + count] = -1
    step.receives.append(Receive(src, span, state.span(*found, count), late))


def _local_now(
    state: _Lowering, rows: list[list[int]], arriving: list[list[int]], step: ProgramStep
) -> None:
    """Local moves that share a step with messages, or add: carried out at the step's end."""
    writes = {(r[4], r[5] + i) for r in rows + arriving for i in range(r[6])}
    for _, _, sb, sc, db, dc, count, reduce in rows:
        if any((sb, sc + i) in writes for i in range(count)):
            raise ScheduleError(
                f"rank {state.rank}: a move inside the rank reads {Buffer(sb).name.lower()}[{sc}],"
                " which the same step writes; put it in a step of its own"
            )
        state.settle(sb, sc, count, step.before)
        state.settle_readers(db, dc, count, step.before)
        if reduce:
            state.settle(db, dc, count, step.before)
        state.pending.buffer[Buffer(db)][dc : dc + count] = -1
        step.after.append(Local(state.span(db, dc, count), state.span(sb, sc, count), bool(reduce)))


def lower(
    schedule: Schedule, layout: Layout, rank: int, elements: Elements, *, in_place: bool = False
) -> Program:
    """A placed schedule as one rank's program.

    ``elements``: as in `Layout.bounds`. In place the program may name ``in`` and ``out`` for the
    same memory. Raises ScheduleError for a step that reads inside a rank what it also writes.
    """
    if schedule.vector:
        raise ScheduleError("lower: the schedule is in vector form; place it first")
    state = _Lowering(schedule, layout, rank, elements, in_place)
    steps = [_lower_step(state, i, step.moves(rank)) for i, step in enumerate(schedule.steps)]
    last = ProgramStep(len(steps))
    state.settle(Buffer.OUT, 0, len(state.edges[Buffer.OUT]) - 1, last.after)
    sizes = {b: int(e[-1]) for b, e in state.edges.items()}
    used = _scratch_used(steps)
    sizes[Buffer.SCRATCH] = min(sizes[Buffer.SCRATCH], used)
    return Program(rank, tuple(s for s in (*steps, last) if s), sizes)


def _scratch_used(steps: list[ProgramStep]) -> int:
    """Elements of scratch up to the last one that anything touches."""
    spans: list[Span] = []
    for step in steps:
        spans += [send.span for send in step.sends]
        spans += [receive.span for receive in step.receives]
        spans += [part for one in (*step.before, *step.after) for part in (one.span, one.source)]
    return max((span.stop for span in spans if span.buffer is Buffer.SCRATCH), default=0)
