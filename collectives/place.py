"""The pass that turns vector form into slots of in, out and scratch for one collective.

A rank whose ``out`` holds every vector chunk that it touches works there; any other works in
scratch. Before the steps it copies its ``in`` to where it works, after them what it wants from
there. Those copies are local and mostly never happen: `collectives.program` reads from where the
data still lies.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from collectives.layout import Layout
from collectives.moves import Buffer, Moves, moves
from collectives.schedule import Schedule, Step
from collectives.spec import Collective

__all__ = ["place"]

Numbers = NDArray[np.int64]


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


class _Placer:
    """Where each rank works, decided once for a schedule."""

    def __init__(self, schedule: Schedule, layout: Layout) -> None:
        self.layout = layout
        touched = [np.zeros(schedule.nchunks, bool) for _ in range(schedule.nranks)]
        for step in schedule.steps:
            _mark(touched, step.moves())
        self.touched = touched
        self.in_out = np.zeros(schedule.nranks, bool)
        self.local = np.full((schedule.nranks, schedule.nchunks), -1, np.int64)
        for rank, chunks in enumerate(touched):
            out = layout.chunks(rank, Buffer.OUT)
            self.in_out[rank] = not np.delete(chunks, out).any()
            own = self.local[rank]
            if self.in_out[rank]:
                own[out] = np.arange(len(out))
            else:
                own[:] = np.arange(schedule.nchunks)

    def buffers(self, ranks: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.where(self.in_out[ranks], Buffer.OUT, Buffer.SCRATCH).astype(np.int32)

    def step(self, m: Moves) -> Moves:
        return m.replace(
            src_buffer=self.buffers(m.src),
            src_chunk=self.local[m.src, m.src_chunk],
            dst_buffer=self.buffers(m.dst),
            dst_chunk=self.local[m.dst, m.dst_chunk],
        )

    def before(self, rank: int) -> Moves:
        """Copies from ``in`` to where the rank works, for every chunk that is touched or wanted."""
        have = self.layout.chunks(rank, Buffer.IN)
        needed = self.touched[rank].copy()
        needed[self.layout.chunks(rank, Buffer.OUT)] = True
        keep = needed[have]
        target = Buffer.OUT if self.in_out[rank] else Buffer.SCRATCH
        return _copies(rank, Buffer.IN, np.flatnonzero(keep), target, self.local[rank, have[keep]])

    def after(self, rank: int) -> Moves:
        """Scratch → out, on ranks that worked in scratch."""
        if self.in_out[rank]:
            return Moves.of(())
        want = self.layout.chunks(rank, Buffer.OUT)
        return _copies(rank, Buffer.SCRATCH, want, Buffer.OUT, np.arange(len(want)))


def _mark(touched: list[NDArray[np.bool_]], m: Moves) -> None:
    unit = m.unit()
    flat = np.zeros((len(touched), len(touched[0])), bool)
    flat[unit.src, unit.src_chunk] = True
    flat[unit.dst, unit.dst_chunk] = True
    for mine, new in zip(touched, flat, strict=True):
        mine |= new


def place(schedule: Schedule, spec: Collective, root: int = 0) -> Schedule:
    """A schedule in vector form as slots of ``in``, ``out`` and ``scratch`` of a collective.

    A schedule that is placed already comes back as it is. Raises ScheduleError when the chunks do
    not fall on the collective's parts.
    """
    if not schedule.vector:
        return schedule
    placer = _Placer(schedule, Layout.of(schedule, spec, root))
    every = range(schedule.nranks)

    def local(of: object) -> Step:
        return Step(
            lambda rank: Moves.concat(of(r) for r in (every if rank is None else (rank,)))  # type: ignore[operator]
        )

    steps = [Step(lambda rank, s=s: placer.step(s.make(rank))) for s in schedule.steps]  # type: ignore[misc]
    scratch = 0 if placer.in_out.all() else schedule.nchunks
    after = [] if placer.in_out.all() else [local(placer.after)]
    return replace(
        schedule, steps=(local(placer.before), *steps, *after), scratch=scratch, vector=False
    )
