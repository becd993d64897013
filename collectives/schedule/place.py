"""The step that turns a schedule in vector form into slots of in, out and scratch of a collective.

A rank works on a chunk in ``out`` if ``out`` holds it, leaves it in ``in`` if it only reads it, and
uses scratch for the rest. Chunks that one move carries together stay adjacent. Before the steps a
rank copies its ``in`` to its working slots; after them it copies its result to ``out``. Most of
these local copies are never executed, since `collectives.execution.lower` reads the data at its
source.

`pack` makes one message of everything a pair of ranks exchanges in a step: fewer messages for more
copies. The sender gathers chunks that are not adjacent in scratch, and the receiver scatters them.
The copies are local, so `collectives.execution.lower` delays them, and data that is scattered only
to be gathered again is copied once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import ScheduleError
from collectives.schedule.layout import Layout, Slots
from collectives.schedule.moves import Buffer, Column, Moves, moves
from collectives.schedule.schedule import Schedule, Step
from collectives.schedule.spec import Collective

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_NOWHERE = -1
# Up to so many moves (256 MiB) a schedule's moves are kept; otherwise each reader makes them again.
_KEPT = 1 << 23
# Uses that are collected before those of one chunk are joined.
_GATHERED = 1 << 22
# Up to so many pairs of rank and chunk have a table; otherwise the used ones are searched.
_TABLED = 1 << 24
_WRITTEN, _FOLLOWS, _FLAGS = 1, 2, 2


class _Room:
    """Scratch that every rank needs in addition to the schedule's own."""

    def __init__(self, schedule: Schedule, layout: Layout) -> None:
        self.slots = Slots(layout)
        self.size = self.slots.size[Buffer.SCRATCH].copy()
        # The chunks of fresh slots, in the order of ranks, and each rank's number of them.
        self._fresh: list[tuple[Numbers, Numbers]] = []
        self._own = [schedule.scratch_chunks(rank) for rank in range(schedule.nranks)]

    def take(self, ranks: Numbers, counts: Numbers) -> Numbers:
        """Allocate runs of ``counts`` fresh slots on ``ranks``; returns each run's first slot."""
        order = np.argsort(ranks, kind="stable")
        ends = np.cumsum(counts[order])
        taken = np.bincount(ranks, counts, len(self.size)).astype(np.int64)
        first = np.empty(len(ranks), np.int64)
        first[order] = ends - counts[order] - (np.cumsum(taken) - taken)[ranks[order]]
        first += self.size[ranks]
        self.size += taken
        return first

    def stand(self, ranks: Numbers, slots: Numbers, chunks: Numbers) -> None:
        """Record which vector chunks fresh slots stand for."""
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
    """True for moves of pairs of ranks that exchange more than one message."""
    one = m.remote().joined()
    pairs, times = np.unique(one.pairs(nranks), return_counts=True)
    return np.isin(m.pairs(nranks), pairs[times > 1])


def _packed(m: Moves, room: _Room) -> list[Step]:
    """Split a step into gathering, messages and scattering."""
    nranks = len(room.size)
    theirs = _scattered(m, nranks)
    if not theirs.any():
        return [Step.fixed(m)]
    several = m.where(theirs)
    several = Moves(several.table[:, np.argsort(several.pairs(nranks), kind="stable")])
    unit = several.unit()
    pairs, first, counts = np.unique(unit.pairs(nranks), return_index=True, return_counts=True)
    src, dst = np.divmod(pairs, nranks)
    # For each pair the sender's slots come first, then the receiver's.
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
    """A placed schedule in which no pair of ranks exchanges more than one message per step."""
    room = _Room(schedule, layout)
    steps = [new for step in schedule.steps for new in _packed(step.moves(), room)]
    return replace(
        schedule, steps=tuple(steps), scratch=int(room.size.max(initial=0)), held=room.held()
    )


def _check(m: Moves, schedule: Schedule, number: int) -> None:
    """Raise ScheduleError, naming step, rank and chunk, for a move outside the vector."""
    for ranks, chunks in ((m.src, m.src_chunk), (m.dst, m.dst_chunk)):
        bad = (ranks < 0) | (ranks >= schedule.nranks)
        bad |= (chunks < 0) | (m.count < 1)
        bad |= chunks.astype(np.int64) + m.count > schedule.nchunks
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise ScheduleError(
                f"step {number}: rank {ranks[i]} of {schedule.nranks}: chunk {chunks[i]}"
                f"+{m.count[i]} is out of range; the vector has {schedule.nchunks} chunks"
            )


class _Uses(NamedTuple):
    """The chunks that ranks read or write, as sorted keys rank x nchunks + chunk, each once.

    ``written``: whether the rank writes it; ``follows``: whether some move carries it together with
    the chunk before.
    """

    keys: Numbers
    written: Flags
    follows: Flags


def _marked(m: Moves, nchunks: int) -> list[Numbers]:
    """Keys of both ends of a step's moves, chunk by chunk, with flags in their lowest bits."""
    unit = m.unit()
    flags = np.zeros(len(unit), np.int64)
    if unit is not m:
        flags += _FOLLOWS
        flags[np.cumsum(m.count) - m.count] = 0
    ends = (unit.src, unit.src_chunk, 0), (unit.dst, unit.dst_chunk, _WRITTEN)
    return [
        (ranks.astype(np.int64) * nchunks + chunks << _FLAGS) + flags + wrote
        for ranks, chunks, wrote in ends
    ]


def _joined(marked: Sequence[Numbers]) -> Numbers:
    """The marked keys without duplicates, each with all its flags."""
    every = np.sort(np.concatenate([np.empty(0, np.int64), *marked]))
    keys = every >> _FLAGS
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    return np.bitwise_or.reduceat(every, first) if len(first) else every


def _used(steps: Iterable[Moves], schedule: Schedule) -> _Uses:
    gathered: list[Numbers] = []
    many = 0
    for number, m in enumerate(steps):
        _check(m, schedule, number)
        gathered += _marked(m, schedule.nchunks)
        many += len(gathered[-1]) + len(gathered[-2])
        if many > _GATHERED:
            gathered, many = [_joined(gathered)], 0
    every = _joined(gathered)
    return _Uses(every >> _FLAGS, every & _WRITTEN > 0, every & _FOLLOWS > 0)


class _Held(NamedTuple):
    """The chunks in all ranks' ``in`` or ``out``: rank, place in the buffer, key."""

    rank: Numbers
    place: Numbers
    key: Numbers

    @classmethod
    def of(cls, layout: Layout, buffer: Buffer) -> _Held:
        lists = [layout.chunks(rank, buffer) for rank in range(layout.nranks)]
        sizes = np.array([len(chunks) for chunks in lists], np.int64)
        rank = np.repeat(np.arange(layout.nranks), sizes)
        place = np.arange(len(rank)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        chunks = np.concatenate([np.empty(0, np.int64), *lists])
        return cls(rank, place, rank * layout.nchunks + chunks)

    def find(self, keys: Numbers) -> Numbers:
        """The places of keys in the buffer of their rank, -1 for none."""
        if not len(self.key):
            return np.full(len(keys), _NOWHERE)
        order = np.argsort(self.key, kind="stable")
        at = np.searchsorted(self.key[order], keys).clip(max=len(order) - 1)
        hit = order[at]
        return np.where(self.key[hit] == keys, self.place[hit], _NOWHERE)


class _Homes:
    """The slot in which each rank works on each chunk that it uses."""

    def __init__(self, uses: _Uses, layout: Layout) -> None:
        self._keys, self._nchunks = uses.keys, layout.nchunks
        self._table: NDArray[np.int32] | None = None
        if layout.nranks * layout.nchunks <= _TABLED:
            self._table = np.full(layout.nranks * layout.nchunks, _NOWHERE, np.int32)
            self._table[uses.keys] = np.arange(len(uses.keys))
        self._in, self._out = (_Held.of(layout, b) for b in (Buffer.IN, Buffer.OUT))
        self._choose(uses)
        rank, chunk = np.divmod(uses.keys, layout.nchunks or 1)
        in_scratch = self._buffer == Buffer.SCRATCH
        count = np.bincount(rank[in_scratch], minlength=layout.nranks)
        first = np.cumsum(count) - count
        self._slot[in_scratch] = np.arange(in_scratch.sum()) - np.repeat(first, count)
        #: The chunks of each rank's scratch, in order.
        self.held = tuple(np.split(chunk[in_scratch], first[1:]))

    def _choose(self, uses: _Uses) -> None:
        """Choose a buffer for each run of chunks that stay together; scratch slots follow later."""
        keys, rank = uses.keys, uses.keys // max(1, self._nchunks)
        self._buffer = np.full(len(keys), int(Buffer.SCRATCH), np.int32)
        self._slot = np.zeros(len(keys), np.int32)
        if not len(keys):
            return
        starts = ~uses.follows | (np.diff(rank, prepend=-1) != 0)
        first = np.flatnonzero(starts)
        run = np.cumsum(starts) - 1
        free = np.ones(len(first), bool)
        untouched = ~np.bitwise_or.reduceat(uses.written, first)
        for home, held, allowed in (
            (Buffer.OUT, self._out, free),
            (Buffer.IN, self._in, untouched),
        ):
            place = held.find(keys)
            fits = (place != _NOWHERE) & (starts | (np.diff(place, prepend=_NOWHERE) == 1))
            whole = np.logical_and.reduceat(fits, first) & free & allowed
            free = free & ~whole
            chosen = whole[run]
            self._buffer[chosen], self._slot[chosen] = home, place[chosen]

    def _find(self, keys: Numbers) -> Numbers:
        """The indices of keys among those in use, -1 for none."""
        if self._table is not None:
            return self._table[keys].astype(np.int64)
        if not len(self._keys):
            return np.full(len(keys), _NOWHERE)
        at = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        return np.where(self._keys[at] == keys, at, _NOWHERE)

    def _slots_of(self, ranks: Column, chunks: Column) -> tuple[Column, Column]:
        at = self._find(ranks.astype(np.int64) * self._nchunks + chunks)
        return self._buffer[at], self._slot[at]

    def step(self, m: Moves) -> Moves:
        """A step's moves with slots instead of chunks."""
        read, write = self._slots_of(m.src, m.src_chunk), self._slots_of(m.dst, m.dst_chunk)
        return m.replace(
            src_buffer=read[0], src_chunk=read[1], dst_buffer=write[0], dst_chunk=write[1]
        )

    def copies(self, end: Buffer) -> Moves:
        """The copies from ``in`` to the working slots, or from these to ``out``, in runs.

        Chunks without moves have their working slot in ``out``.
        """
        held = self._in if end is Buffer.IN else self._out
        slot = self._out.find(held.key)
        buffer = np.where(slot != _NOWHERE, int(Buffer.OUT), _NOWHERE)
        at = self._find(held.key)
        used = np.flatnonzero(at != _NOWHERE)
        buffer[used], slot[used] = self._buffer[at[used]], self._slot[at[used]]
        columns = np.stack([held.rank, buffer, held.place, slot])
        columns = columns[:, (buffer != end) & (buffer != _NOWHERE)]
        columns = columns[:, np.lexsort(columns[2::-1])]
        # A run continues in the same rank and buffer, with the next place and the next slot.
        steps = np.diff(columns, prepend=_NOWHERE - 1) != [[0], [0], [1], [1]]
        first = np.flatnonzero(steps.any(axis=0))
        count = np.diff(first, append=columns.shape[1])
        rank, buffer, own, slot = columns[:, first]
        if end is Buffer.IN:
            return moves(rank, rank, own, to=slot, count=count, src_buffer=end, dst_buffer=buffer)
        return moves(rank, rank, slot, to=own, count=count, src_buffer=buffer, dst_buffer=end)


def place(schedule: Schedule, spec: Collective, root: int = 0) -> Schedule:
    """Turn a schedule in vector form into slots of ``in``, ``out`` and ``scratch`` of a collective.

    A placed schedule is returned unchanged. Raises ScheduleError if chunks are not whole divisions
    of the collective's parts, and for a move with an unknown rank or chunk.
    """
    if not schedule.vector:
        return schedule
    layout = Layout.of(schedule, spec, root)
    moves_of_steps = _moves_of_steps(schedule)
    every = moves_of_steps or (step.moves() for step in schedule.steps)
    homes = _Homes(_used(every, schedule), layout)
    before, after = (
        [Step.fixed(m)] if len(m) else [] for m in map(homes.copies, (Buffer.IN, Buffer.OUT))
    )

    def placed(step: Step) -> Step:
        return Step(lambda: homes.step(step.make()))

    steps = list(map(placed, schedule.steps)) if moves_of_steps is None else []
    while moves_of_steps:  # what has been placed is no longer needed
        steps.append(Step.fixed(homes.step(moves_of_steps.pop(0))))
    done = replace(
        schedule,
        steps=(*before, *steps, *after),
        scratch=max(map(len, homes.held), default=0),
        held=homes.held,
        vector=False,
    )
    return pack(done, Layout.of(done, spec, root)) if schedule.packed else done


def _moves_of_steps(schedule: Schedule) -> list[Moves] | None:
    """All steps' moves, or None if they are too many to keep."""
    every: list[Moves] = []
    many = 0
    for step in schedule.steps:
        every.append(step.moves())
        many += len(every[-1])
        if many > _KEPT:
            return None
    return every
