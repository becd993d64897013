"""Lowers a placed schedule to one rank's program: chunks become elements, copies are elided.

A local copy, such as that of the input to the working buffer, is delayed until something needs it.
Until then a send or an addition reads the data at its source.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from busbar.errors import ScheduleError
from collectives.execution.program import Local, Program, ProgramStep, Receive, Send, Span
from collectives.schedule.layout import Elements, Layout
from collectives.schedule.moves import Buffer, Moves
from collectives.schedule.schedule import Schedule

_NOTHING = -1
Ids = NDArray[np.int64]


class _Memory:
    """One rank's slots, numbered through all buffers, and its delayed copies.

    ``pending[i]`` is the slot whose data slot i should hold but does not yet hold. In place, a slot
    of ``in`` that is also one of ``out`` has the number of the latter.
    """

    def __init__(self, layout: Layout, rank: int, elements: Elements, in_place: bool) -> None:
        self.edges = {b: layout.bounds(rank, b, elements) for b in Buffer}
        sizes = [len(self.edges[b]) - 1 for b in Buffer]
        self.base = np.concatenate([[0], np.cumsum(sizes)])
        self.number = np.arange(self.base[-1])
        # True for a slot that is the first of its buffer.
        self.begins = np.isin(self.number, self.base)
        if in_place:
            for i, at in layout.shared(rank).items():
                self.number[i] = self.base[Buffer.OUT] + at
        self.pending = np.full(len(self.number), _NOTHING)
        # For each slot, the slots with a pending copy from it; entries may be out of date.
        self.readers: dict[int, list[int]] = {}

    def ids(self, buffer: int, chunk: int, count: int) -> Ids:
        """The numbers of ``count`` slots of a buffer from ``chunk`` on."""
        start = self.base[buffer] + chunk
        return self.number[start : start + count]

    def span(self, buffer: int, chunk: int, count: int) -> Span:
        """The elements of ``count`` slots of a buffer from ``chunk`` on."""
        edges = self.edges[Buffer(buffer)]
        return Span(Buffer(buffer), int(edges[chunk]), int(edges[chunk + count]))

    def span_of(self, first: int, count: int) -> Span:
        """The elements of ``count`` slots of one buffer from slot number ``first`` on."""
        # Several buffers may start at this number: all but the last of them are empty.
        buffer = int(np.searchsorted(self.base, first, side="right")) - 1
        return self.span(buffer, int(first - self.base[buffer]), count)

    def runs(self, ids: Ids, source: Ids) -> list[slice]:
        """The longest runs in which slots are adjacent, and so are their sources."""
        if len(ids) < 2:
            return [slice(0, len(ids))] if len(ids) else []
        edge = self.begins[ids[1:]] | self.begins[source[1:]]
        breaks = (np.diff(ids) != 1) | (np.diff(source) != 1) | edge
        cuts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(ids)]
        return [slice(a, b) for a, b in pairwise(cuts)]

    def where(self, buffer: int, chunk: int, count: int, into: list[Local]) -> tuple[Ids, Span]:
        """The slots and elements where the data of a run of slots lies now.

        If the data does not lie in one piece, the run's pending copies are carried out first.
        """
        ids = self.ids(buffer, chunk, count)
        source = self.pending[ids]
        if (source == _NOTHING).all():
            return ids, self.span(buffer, chunk, count)
        if (source != _NOTHING).all() and len(self.runs(source, source)) == 1:
            return source, self.span_of(int(source[0]), count)
        self.settle(ids, into)
        return ids, self.span(buffer, chunk, count)

    def settle(self, ids: Ids, into: list[Local]) -> None:
        """Carry out the pending copies into these slots."""
        todo = ids[self.pending[ids] != _NOTHING]
        source = self.pending[todo]
        for run in self.runs(todo, source):
            n = run.stop - run.start
            read = self.span_of(int(source[run.start]), n)
            if read.size:
                into.append(Local(self.span_of(int(todo[run.start]), n), read, False))
        self.pending[todo] = _NOTHING

    def change(self, ids: Ids, into: list[Local]) -> None:
        """Prepare these slots for a change: carry out the pending copies that read them."""
        for i in ids.tolist():
            waiting = {r for r in self.readers.pop(i, ()) if self.pending[r] == i}
            if waiting:
                self.settle(np.array(sorted(waiting), np.int64), into)

    def put_off(self, row: list[int], into: list[Local]) -> None:
        """Delay a local copy: record it as pending."""
        _, _, sb, sc, db, dc, count, _ = row
        reads, writes = self.ids(sb, sc, count), self.ids(db, dc, count)
        for read, write in zip(reads.tolist(), writes.tolist(), strict=True):
            if read == write:
                continue
            source = int(self.pending[read]) if self.pending[read] != _NOTHING else read
            self.change(np.array([write]), into)
            if source == write:  # the copy restores data that never moved
                self.pending[write] = _NOTHING
                continue
            self.pending[write] = source
            self.readers.setdefault(source, []).append(write)


def _lower_step(memory: _Memory, rank: int, number: int, m: Moves) -> ProgramStep:
    step = ProgramStep(number)
    rows = m.joined().table.T.tolist()
    local = [row for row in rows if row[0] == row[1]]
    leaving = [row for row in rows if row[0] == rank != row[1]]
    arriving = [row for row in rows if row[1] == rank != row[0]]
    if local and not (leaving or arriving or any(row[7] for row in local)):
        for row in local:
            memory.put_off(row, step.before)
        return step
    read = _send(memory, leaving, step)
    for _, _, _, _, db, dc, count, _ in (*local, *arriving):
        memory.change(memory.ids(db, dc, count), step.before)
    _local_now(memory, rank, local, arriving, step)
    for row in arriving:
        _receive(memory, row, read, step)
    step.sends = [s for s in step.sends if s.span.size]
    step.receives = [r for r in step.receives if r.span.size]
    return step


def _send(memory: _Memory, rows: list[list[int]], step: ProgramStep) -> set[int]:
    """Add the step's sends; returns the slots that they read."""
    read: set[int] = set()
    for _, dst, sb, sc, _, _, count, reduce in rows:
        ids, span = memory.where(sb, sc, count, step.before)
        step.sends.append(Send(dst, span, bool(reduce)))
        read |= set(ids.tolist())
    return read


def _receive(memory: _Memory, row: list[int], read: set[int], step: ProgramStep) -> None:
    src, _, _, _, db, dc, count, reduce = row
    ids, span = memory.ids(db, dc, count), memory.span(db, dc, count)
    late = not read.isdisjoint(ids.tolist())
    other = memory.where(db, dc, count, step.before)[1] if reduce else None
    memory.pending[ids] = _NOTHING
    step.receives.append(Receive(src, span, other, late))


def _local_now(
    memory: _Memory, rank: int, rows: list[list[int]], arriving: list[list[int]], step: ProgramStep
) -> None:
    """Carry out local moves of a step that also has messages or additions, at the step's end."""
    # In place a copy from ``in`` to ``out`` may already be done.
    rows = [
        row
        for row in rows
        if row[7] or not np.array_equal(memory.ids(row[2], row[3], row[6]), memory.ids(*row[4:7]))
    ]
    if not rows:
        return
    writes = np.concatenate([memory.ids(*row[4:7]) for row in (*rows, *arriving)])
    for _, _, sb, sc, db, dc, count, reduce in rows:
        reads, ids = memory.ids(sb, sc, count), memory.ids(db, dc, count)
        if np.isin(reads, writes).any():
            raise ScheduleError(
                f"rank {rank}: a move inside the rank reads {Buffer(sb).name.lower()}[{sc}],"
                " which the same step writes; put it in a step of its own"
            )
        memory.settle(reads, step.before)
        if reduce:
            memory.settle(ids, step.before)
        memory.pending[ids] = _NOTHING
        source = memory.span(sb, sc, count)
        if source.size:
            step.after.append(Local(memory.span(db, dc, count), source, bool(reduce)))


def lower(
    schedule: Schedule, layout: Layout, rank: int, elements: Elements, *, in_place: bool = False
) -> Program:
    """Lower a placed schedule to one rank's program.

    ``elements``: as in `Layout.bounds`. With ``in_place``, ``in`` and ``out`` of the program share
    memory. Raises ScheduleError for a step that reads inside a rank what it also writes.
    """
    if schedule.vector:
        raise ScheduleError("lower: the schedule is in vector form; place it first")
    layout = replace(layout, scratch=schedule.scratch_chunks)
    memory = _Memory(layout, rank, elements, in_place)
    steps = [
        _lower_step(memory, rank, number, step.moves(rank))
        for number, step in enumerate(schedule.steps)
    ]
    last = ProgramStep(len(steps))
    memory.settle(memory.ids(Buffer.OUT, 0, len(memory.edges[Buffer.OUT]) - 1), last.after)
    sizes = {b: int(e[-1]) for b, e in memory.edges.items()}
    sizes[Buffer.SCRATCH] = min(sizes[Buffer.SCRATCH], _scratch_used(steps))
    return Program(rank, tuple(s for s in (*steps, last) if s), sizes, schedule.fusible)


def _scratch_used(steps: list[ProgramStep]) -> int:
    """Elements of scratch that the steps use, counted to the last one."""
    spans: list[Span] = []
    for step in steps:
        spans += [send.span for send in step.sends]
        spans += [receive.span for receive in step.receives]
        spans += [part for one in (*step.before, *step.after) for part in (one.span, one.source)]
    return max((span.stop for span in spans if span.buffer is Buffer.SCRATCH), default=0)
