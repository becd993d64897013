"""The pass that makes one message of everything a pair of ranks exchanges in a step.

The sender gathers chunks that are not adjacent in scratch, and the receiver scatters them: fewer
messages for more copies. The copies are local, so `collectives.execution.lower` delays them, and
data that is scattered only to be gathered again is copied once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from collectives.schedule.layout import Layout, Slots
from collectives.schedule.moves import Buffer, Moves, moves
from collectives.schedule.schedule import Schedule, Step

Numbers = NDArray[np.int64]


class _Room:
    """Scratch that every rank has beyond what the schedule itself uses."""

    def __init__(self, schedule: Schedule, layout: Layout) -> None:
        self.slots = Slots(layout)
        self.size = self.slots.size[Buffer.SCRATCH].copy()
        # The chunks of fresh slots, in the order of ranks, and how many each rank has of them.
        self._fresh: list[tuple[Numbers, Numbers]] = []
        self._own = [schedule.scratch_chunks(rank) for rank in range(schedule.nranks)]

    def take(self, ranks: Numbers, counts: Numbers) -> Numbers:
        """Runs of so many fresh slots of ranks, one after the other; gives each run's first."""
        order = np.argsort(ranks, kind="stable")
        ends = np.cumsum(counts[order])
        taken = np.bincount(ranks, counts, len(self.size)).astype(np.int64)
        first = np.empty(len(ranks), np.int64)
        first[order] = ends - counts[order] - (np.cumsum(taken) - taken)[ranks[order]]
        first += self.size[ranks]
        self.size += taken
        return first

    def stand(self, ranks: Numbers, slots: Numbers, chunks: Numbers) -> None:
        """Say which vector chunks fresh slots stand for."""
        order = np.lexsort((slots, ranks))
        self._fresh.append((chunks[order], np.bincount(ranks, minlength=len(self.size))))

    def held(self) -> tuple[Numbers, ...]:
        """The chunks of every rank's scratch."""
        pieces = [np.split(chunks, np.cumsum(n)[:-1]) for chunks, n in self._fresh]
        return tuple(
            np.concatenate([own, *(piece[rank] for piece in pieces)]).astype(np.int64)
            for rank, own in enumerate(self._own)
        )


def _scattered(m: Moves, nranks: int) -> NDArray[np.bool_]:
    """Flags of the moves of pairs of ranks that exchange more than one message."""
    one = m.remote().joined()
    pairs, times = np.unique(_pair(one, nranks), return_counts=True)
    return np.isin(_pair(m, nranks), pairs[times > 1])


def _pair(m: Moves, nranks: int) -> Numbers:
    return m.src.astype(np.int64) * nranks + m.dst


def _packed(m: Moves, room: _Room) -> list[Step]:
    """A step as gathering, messages and spreading."""
    nranks = len(room.size)
    theirs = _scattered(m, nranks)
    if not theirs.any():
        return [Step.fixed(m)]
    several = m.where(theirs)
    several = Moves(several.table[:, np.argsort(_pair(several, nranks), kind="stable")])
    unit = several.unit()
    pairs, first, counts = np.unique(_pair(unit, nranks), return_index=True, return_counts=True)
    src, dst = np.divmod(pairs, nranks)
    # Of each pair the sender's room comes first, then the receiver's.
    at = room.take(np.stack([src, dst], axis=1).ravel(), np.repeat(counts, 2))
    out, into = at[0::2], at[1::2]
    inside = np.arange(len(unit)) - np.repeat(first, counts)
    left, came = np.repeat(out, counts) + inside, np.repeat(into, counts) + inside
    chunks = room.slots.stands[room.slots.read(unit)]
    ends = np.concatenate([unit.src, unit.dst]).astype(np.int64)
    room.stand(ends, np.concatenate([left, came]), np.tile(chunks, 2))
    gather = unit.replace(dst=unit.src, dst_buffer=Buffer.SCRATCH, dst_chunk=left, reduce=0)
    spread = unit.replace(src=unit.dst, src_buffer=Buffer.SCRATCH, src_chunk=came)
    scratch = {"src_buffer": Buffer.SCRATCH, "dst_buffer": Buffer.SCRATCH}
    messages = moves(src, dst, out, to=into, count=counts, **scratch)
    return [Step.fixed(p) for p in (gather, Moves.concat([m.where(~theirs), messages]), spread)]


def pack(schedule: Schedule, layout: Layout) -> Schedule:
    """A placed schedule in which no pair of ranks exchanges more than one message a step."""
    room = _Room(schedule, layout)
    steps = [new for step in schedule.steps for new in _packed(step.moves(), room)]
    return replace(
        schedule, steps=tuple(steps), scratch=int(room.size.max(initial=0)), held=room.held()
    )
