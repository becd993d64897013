"""The pass that makes one message of everything a pair of ranks exchanges in a step.

What does not lie side by side is gathered in scratch by the sender and spread again by the
receiver: latency for copies. The copies are local, so `collectives.lower` puts them off, and what
is spread only to be gathered again is copied once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from collectives.layout import Layout
from collectives.moves import Buffer, Moves, moves
from collectives.schedule import Schedule, Step

__all__ = ["pack"]

Numbers = NDArray[np.int64]


class _Room:
    """Scratch that every rank has beyond what the schedule itself uses."""

    def __init__(self, schedule: Schedule, layout: Layout) -> None:
        ranks = range(schedule.nranks)
        self.chunks = {(r, b): layout.chunks(r, b) for r in ranks for b in Buffer}
        self.held = [[schedule.scratch_chunks(r)] for r in ranks]
        self.size = [len(schedule.scratch_chunks(r)) for r in ranks]

    def take(self, rank: int, chunks: Numbers) -> int:
        """Fresh slots that stand for these chunks; gives the first."""
        first = self.size[rank]
        self.size[rank] += len(chunks)
        self.held[rank].append(chunks)
        return first

    def standing(self, m: Moves) -> Numbers:
        """The vector chunks that unit moves carry."""
        slots = zip(m.src.tolist(), m.src_buffer.tolist(), m.src_chunk.tolist(), strict=True)
        return np.array([self.chunks[r, Buffer(b)][c] for r, b, c in slots], np.int64)


def _scattered(m: Moves) -> list[NDArray[np.bool_]]:
    """For every pair of ranks that exchanges more than one message, which moves are theirs."""
    one = m.remote().joined()
    pairs, times = np.unique(np.stack([one.src, one.dst]), axis=1, return_counts=True)
    return [(m.src == src) & (m.dst == dst) for src, dst in pairs[:, times > 1].T]


def _packed(m: Moves, room: _Room) -> list[Step]:
    """A step as gathering, messages and spreading."""
    gather, spread, messages = [], [], []
    rest = np.ones(len(m), bool)
    for theirs in _scattered(m):
        rest &= ~theirs
        unit = m.where(theirs).unit()
        src, dst = int(unit.src[0]), int(unit.dst[0])
        chunks = room.standing(unit)
        out, into = room.take(src, chunks), room.take(dst, chunks)
        order = np.arange(len(unit))
        gather.append(
            unit.replace(dst=src, dst_buffer=Buffer.SCRATCH, dst_chunk=out + order, reduce=0)
        )
        spread.append(unit.replace(src=dst, src_buffer=Buffer.SCRATCH, src_chunk=into + order))
        scratch = {"src_buffer": Buffer.SCRATCH, "dst_buffer": Buffer.SCRATCH}
        messages.append(moves(src, dst, out, to=into, count=len(unit), **scratch))
    if not messages:
        return [Step.fixed(m)]
    parts = (gather, [m.where(rest), *messages], spread)
    return [Step.fixed(Moves.concat(part)) for part in parts]


def pack(schedule: Schedule, layout: Layout) -> Schedule:
    """A placed schedule in which no pair of ranks exchanges more than one message a step."""
    room = _Room(schedule, layout)
    steps = [new for m in schedule.all_moves for new in _packed(m, room)]
    return replace(
        schedule,
        steps=tuple(steps),
        scratch=max(room.size),
        held=tuple(np.concatenate(held) for held in room.held),
    )
