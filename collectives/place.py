"""The pass that turns vector form into slots of in, out and scratch for one collective.

A rank works on a chunk in ``out`` where ``out`` holds it, leaves it in ``in`` where it only reads
it, and takes scratch for the rest; chunks that one move carries together stay together. Before the
steps a rank copies its ``in`` to where it works, after them what it wants to ``out``. Those copies
are local and mostly never happen: `collectives.lower` reads from where the data still lies.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from collectives.layout import Layout
from collectives.moves import Buffer, Moves, moves
from collectives.pack import pack
from collectives.schedule import Schedule, Step
from collectives.spec import Collective

__all__ = ["place"]

Numbers = NDArray[np.int64]

_NOWHERE = -1


def _runs(*columns: Numbers) -> list[slice]:
    """Maximal runs in which every column counts up by one."""
    if len(columns[0]) == 0:
        return []
    breaks = np.any([np.diff(column) != 1 for column in columns], axis=0)
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(columns[0])]
    return [slice(a, b) for a, b in pairwise(edges)]


def _copies(rank: int, source: Buffer, read: Numbers, target: Buffer, write: Numbers) -> Moves:
    runs = _runs(read, write)
    return moves(
        rank,
        rank,
        [int(read[run][0]) for run in runs],
        to=[int(write[run][0]) for run in runs],
        count=[run.stop - run.start for run in runs],
        src_buffer=source,
        dst_buffer=target,
    )


class _Use:
    """Which chunks each rank reads or writes, writes, and moves together with the chunk before."""

    def __init__(self, schedule: Schedule) -> None:
        shape = (schedule.nranks, schedule.nchunks)
        self.touched = np.zeros(shape, bool)
        self.written = np.zeros(shape, bool)
        self.follows = np.zeros(shape, bool)
        for step in schedule.steps:
            m = step.moves()
            unit = m.unit()
            self.touched[unit.src, unit.src_chunk] = True
            self.written[unit.dst, unit.dst_chunk] = True
            if unit is not m:
                first = np.zeros(len(unit), bool)
                first[np.cumsum(m.count) - m.count] = True
                later = unit.where(~first)
                self.follows[later.src, later.src_chunk] = True
                self.follows[later.dst, later.dst_chunk] = True
        self.touched |= self.written


def _positions(chunks: Numbers, nchunks: int) -> Numbers:
    found = np.full(nchunks, _NOWHERE)
    found[chunks] = np.arange(len(chunks))
    return found


def _choose(use: _Use, layout: Layout, rank: int) -> tuple[Numbers, Numbers, Numbers]:
    """For every chunk the buffer and the slot where the rank works on it; what scratch holds."""
    n = layout.nchunks
    out = _positions(layout.chunks(rank, Buffer.OUT), n)
    source = _positions(layout.chunks(rank, Buffer.IN), n)
    # Chunks that nothing touches stay where they are wanted.
    buffer = np.where(out != _NOWHERE, int(Buffer.OUT), _NOWHERE)
    slot = out.copy()
    held: list[Numbers] = []
    room = 0
    touched = np.flatnonzero(use.touched[rank])
    starts = np.flatnonzero(~use.follows[rank][touched])
    for run in np.split(touched, starts[1:]) if len(touched) else []:
        for home, where in ((Buffer.OUT, out), (Buffer.IN, source)):
            whole = (where[run] != _NOWHERE).all() and (np.diff(where[run]) == 1).all()
            if whole and (home is Buffer.OUT or not use.written[rank][run].any()):
                buffer[run], slot[run] = home, where[run]
                break
        else:
            buffer[run] = Buffer.SCRATCH
            slot[run] = room + np.arange(len(run))
            held.append(run)
            room += len(run)
    return buffer, slot, np.concatenate(held) if held else np.empty(0, np.int64)


class _Placer:
    """Where each rank works on each chunk, decided once for a schedule."""

    def __init__(self, schedule: Schedule, layout: Layout) -> None:
        self.layout = layout
        use = _Use(schedule)
        chosen = [_choose(use, layout, rank) for rank in range(schedule.nranks)]
        shape = (schedule.nranks, schedule.nchunks)
        self.buffer = np.array([c[0] for c in chosen], np.int32).reshape(shape)
        self.slot = np.array([c[1] for c in chosen], np.int32).reshape(shape)
        self.held = tuple(c[2] for c in chosen)

    def step(self, m: Moves) -> Moves:
        return m.replace(
            src_buffer=self.buffer[m.src, m.src_chunk],
            src_chunk=self.slot[m.src, m.src_chunk],
            dst_buffer=self.buffer[m.dst, m.dst_chunk],
            dst_chunk=self.slot[m.dst, m.dst_chunk],
        )

    def _between(self, rank: int, source: Buffer, target: Buffer, into: bool) -> Moves:
        """``in`` to where the rank works (``into``), or from where it works to ``out``."""
        chunks = self.layout.chunks(rank, source if into else target)
        at = self.buffer[rank][chunks] == (target if into else source)
        own, there = np.flatnonzero(at), self.slot[rank][chunks[at]].astype(np.int64)
        read, write = (own, there) if into else (there, own)
        return _copies(rank, source, read, target, write)

    def before(self, rank: int) -> Moves:
        """Copies from ``in`` to where the rank works."""
        targets = (Buffer.OUT, Buffer.SCRATCH)
        return Moves.concat(self._between(rank, Buffer.IN, to, True) for to in targets)

    def after(self, rank: int) -> Moves:
        """Copies from where the rank worked to ``out``."""
        sources = (Buffer.IN, Buffer.SCRATCH)
        return Moves.concat(self._between(rank, of, Buffer.OUT, False) for of in sources)


def place(schedule: Schedule, spec: Collective, root: int = 0) -> Schedule:
    """A schedule in vector form as slots of ``in``, ``out`` and ``scratch`` of a collective.

    A schedule that is placed already comes back as it is. Raises ScheduleError when the chunks do
    not fall on the collective's parts.
    """
    if not schedule.vector:
        return schedule
    placer = _Placer(schedule, Layout.of(schedule, spec, root))
    copies = [
        Moves.concat(of(rank) for rank in range(schedule.nranks))
        for of in (placer.before, placer.after)
    ]
    before, after = ([Step.fixed(m)] if len(m) else [] for m in copies)

    def placed(step: Step) -> Step:
        return Step(lambda rank: placer.step(step.make(rank)))

    done = replace(
        schedule,
        steps=(*before, *map(placed, schedule.steps), *after),
        scratch=max(map(len, placer.held)),
        held=placer.held,
        vector=False,
    )
    return pack(done, Layout.of(done, spec, root)) if schedule.packed else done
