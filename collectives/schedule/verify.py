"""Prove, before anything runs, that a schedule implements its collective.

Every slot's content is a *multiset* of contributions: which vector chunk it stands for, and how
often each rank's share of that chunk is in it. Steps are executed on those multisets, all reads
before all writes. Sets would accept a contribution that was added twice; multisets refuse it.
Counts are kept as never, once or more, one bit each. A contribution that was added more than once
stays wrong, so no exact count is needed.

`SlotMemory` checks that each step can be carried out: refused are slots out of range, moves that
conflict, reads of slots that nobody has written, and additions of different chunks.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import ScheduleError, Unsupported
from collectives.schedule.layout import Layout, Slots
from collectives.schedule.moves import Buffer, Moves
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective

# Most bytes of bits for all slots at once; more contributors are checked in several rounds.
_BLOCK_BYTES = 256 * 2**20
_WORD = 64
_NEVER = -1
Numbers = NDArray[np.int64]
Rows = NDArray[np.int32]
Words = NDArray[np.uint64]


class SlotStep(NamedTuple):
    """A step's unit moves by the slots that they read and write, copies before additions.

    ``plain``: the number of copies. ``turns``: the additions, grouped by whether they are the
    first, the second and so on to their slot, so that no turn adds twice to one slot.
    """

    read: Rows
    write: Rows
    plain: int
    turns: tuple[NDArray[np.intp], ...]


class SlotMemory:
    """The slots of all ranks; in place, equal chunks of ``in`` and ``out`` share one slot."""

    def __init__(self, layout: Layout, in_place: bool) -> None:
        self.layout, self.in_place = layout, in_place
        self.slots = Slots(layout)
        self.at = np.arange(len(self.slots), dtype=np.int32)
        if in_place:
            self._alias()
        inside = self.slots.of(Buffer.IN)
        self.filled = np.zeros(len(self.slots), bool)
        self.filled[self.at[inside]] = True
        # The last event of a slot: a mark of the step, or an index among the step's moves.
        self._seen = np.full(len(self.slots), _NEVER, np.int32)
        self._marks = _NEVER

    def _alias(self) -> None:
        inside, out = self.slots.of(Buffer.IN), self.slots.of(Buffer.OUT)
        keys = [
            np.repeat(np.arange(self.layout.nranks), self.slots.size[buffer]) * self.layout.nchunks
            + self.slots.stands[self.slots.of(buffer)]
            for buffer in (Buffer.IN, Buffer.OUT)
        ]
        order = np.argsort(keys[1], kind="stable")
        if len(order):
            nearest = order[np.searchsorted(keys[1][order], keys[0]).clip(max=len(order) - 1)]
            same = keys[1][nearest] == keys[0]
            self.at[inside] = np.where(same, out.start + nearest, self.at[inside])

    def step(self, moves: Moves, where: str) -> SlotStep:
        """Check a step's moves and return them; in-place copies of a slot to itself are dropped."""
        _check_ranges(moves, self.slots, where)
        m = moves.unit()
        read, write = self.at[self.slots.read(m)], self.at[self.slots.written(m)]
        reduce = m.reduce
        real = (read != write) | reduce
        if not real.all():
            m, read, write, reduce = m.where(real), read[real], write[real], reduce[real]
        if not self.in_place:
            self._check_inputs(m, where)
        plain, added = (np.flatnonzero(~reduce), np.flatnonzero(reduce))
        self._check_hazards(m, read, write, plain, added, where)
        self._check_content(m, read, write, reduce, where)
        self.filled[write] = True
        order = np.concatenate([plain, added]) if len(plain) and len(added) else slice(None)
        return SlotStep(read[order], write[order], len(plain), self._turns(write[added]))

    def _check_inputs(self, m: Moves, where: str) -> None:
        into_input = m.dst_buffer == Buffer.IN
        if into_input.any():
            i = int(np.flatnonzero(into_input)[0])
            raise ScheduleError(
                f"{where}: rank {m.dst[i]}: in[{m.dst_chunk[i]}] is written, but out of place"
                " the input belongs to the caller"
            )

    def _check_hazards(
        self, m: Moves, read: Rows, write: Rows, plain: Numbers, added: Numbers, where: str
    ) -> None:
        """Raise ScheduleError if a plain write shares its slot with another access of the step."""
        slots = write[plain]
        self._seen[slots] = plain
        twice = plain[self._seen[slots] != plain]
        self._marks -= 1
        self._seen[slots] = self._marks
        clash = [
            write[twice],
            read[self._seen[read] == self._marks],
            write[added][self._seen[write[added]] == self._marks],
        ]
        if any(map(len, clash)):
            slot = np.concatenate(clash)[0]
            i = int(plain[np.flatnonzero(slots == slot)[0]])
            raise ScheduleError(
                f"{where}: rank {m.dst[i]}: {_name(m.dst_buffer[i])}[{m.dst_chunk[i]}] is written"
                " plainly while another move of the step uses it"
            )

    def _check_content(
        self, m: Moves, read: Rows, write: Rows, reduce: NDArray[np.bool_], where: str
    ) -> None:
        """Raise ScheduleError for reads of unwritten slots, or moves between different chunks."""
        if not self.filled[read].all():
            i = int(np.flatnonzero(~self.filled[read])[0])
            raise ScheduleError(
                f"{where}: rank {m.src[i]} sends {_name(m.src_buffer[i])}[{m.src_chunk[i]}] to rank"
                f" {m.dst[i]} before anything was written there"
            )
        carried, wanted = self.slots.stands[read], self.slots.stands[write]
        wrong = (carried != wanted) | (reduce & ~self.filled[write])
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            what = f"{where}: rank {m.dst[i]}: chunk {carried[i]} from rank {m.src[i]} is"
            slot = f"{_name(m.dst_buffer[i])}[{m.dst_chunk[i]}]"
            if not reduce[i]:
                raise ScheduleError(
                    f"{what} written to {slot}, which stands for chunk {wanted[i]}: chunks may"
                    " differ in size"
                )
            holds = f"chunk {wanted[i]}" if self.filled[write[i]] else "nothing"
            raise ScheduleError(f"{what} added to {slot}, which holds {holds}")

    def _turns(self, added: Rows) -> tuple[NDArray[np.intp], ...]:
        """The indices of the additions, in turns that add to no slot twice."""
        if not len(added):
            return ()
        self._seen[added] = np.arange(len(added))
        if (self._seen[added] == np.arange(len(added))).all():
            return (np.arange(len(added)),)
        order = np.argsort(added, kind="stable")
        slots = added[order]
        first = np.flatnonzero(np.diff(slots, prepend=_NEVER))
        turn = np.arange(len(slots)) - np.repeat(first, np.diff(first, append=len(slots)))
        by_turn = order[np.argsort(turn, kind="stable")]
        return tuple(np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]))


def _name(buffer: int) -> str:
    return Buffer(int(buffer)).name.lower()


def _check_ranges(m: Moves, slots: Slots, where: str) -> None:
    nranks = slots.size.shape[1]
    for end, ranks, buffers, chunks in (
        ("from", m.src, m.src_buffer, m.src_chunk),
        ("to", m.dst, m.dst_buffer, m.dst_chunk),
    ):
        bad = (ranks < 0) | (ranks >= nranks) | (buffers < 0) | (buffers >= len(Buffer))
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise ScheduleError(
                f"{where}: move {i} has no partner: its {end} end is rank {ranks[i]} of {nranks},"
                f" buffer {buffers[i]}"
            )
        size = slots.size[buffers, ranks]
        bad = (chunks < 0) | (m.count < 1) | (chunks.astype(np.int64) + m.count > size)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise ScheduleError(
                f"{where}: rank {ranks[i]}: slot {_name(buffers[i])}[{chunks[i]}+{m.count[i]}] is"
                f" out of range; the buffer has {size[i]} chunks"
            )


class _Contributions:
    """The contributors of each part, as the specification lists them."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.holders = layout.spec.holders(layout.nranks, layout.root)
        self.count = np.array([len(ranks) for ranks in self.holders], np.int64)

    def begin(self, memory: SlotMemory, low: int, width: int) -> Words:
        """Each slot's contributions at the start: ``width`` words of bits from word ``low`` on."""
        bits = np.zeros((len(memory.slots), width), np.uint64)
        at = memory.at[memory.slots.of(Buffer.IN)]
        parts = memory.slots.stands[at] // max(1, self.layout.split)
        ranks = np.repeat(np.arange(self.layout.nranks), memory.slots.size[Buffer.IN])
        number = self._number(parts.astype(np.int64), ranks)
        word, bit = number // _WORD - low, (number % _WORD).astype(np.uint64)
        inside = (word >= 0) & (word < width)
        bits[at[inside], word[inside]] = np.uint64(1) << bit[inside]
        return bits

    def _number(self, parts: Numbers, ranks: Numbers) -> Numbers:
        """The index of a rank among its part's holders, whose lists are in the order of ranks."""
        every = np.fromiter(chain.from_iterable(self.holders), np.int64, int(self.count.sum()))
        keys = np.repeat(np.arange(len(self.count)), self.count) * self.layout.nranks + every
        first = np.cumsum(self.count) - self.count
        return np.searchsorted(keys, parts * self.layout.nranks + ranks) - first[parts]

    def wanted(self, low: int, width: int) -> Words:
        """Every part's contributions at the end: one from each holder."""
        left = self.count[:, None] - _WORD * np.arange(low, low + width)
        full = ~np.uint64(0)
        some = (np.uint64(1) << (left.clip(0, _WORD - 1).astype(np.uint64))) - np.uint64(1)
        bits: Words = np.where(left >= _WORD, full, some)
        return bits


def _carry_out(steps: list[SlotStep], once: Words, idempotent: bool) -> Words | None:
    """Execute the steps on ``once``; returns the bits of contributions held more than once."""
    more: Words | None = None
    for read, write, plain, turns in steps:
        value, extra = once[read], None if more is None else more[read]
        once[write[:plain]] = value[:plain]
        if more is not None and extra is not None:
            more[write[:plain]] = extra[:plain]
        for turn in turns:
            slots, gained = write[plain:][turn], value[plain:][turn]
            had = once[slots]
            both = had & gained
            once[slots] = had | gained
            if idempotent or (more is None and not both.any()):
                continue
            if more is None:
                more = np.zeros_like(once)
            more[slots] |= both if extra is None else both | extra[plain:][turn]
    return more


def _expect(
    memory: SlotMemory, of: _Contributions, once: Words, more: Words | None, low: int
) -> None:
    layout, out = of.layout, memory.slots.of(Buffer.OUT)
    parts = memory.slots.stands[out] // max(1, layout.split)
    bad = once[out] != of.wanted(low, once.shape[1])[parts]
    if more is not None:
        bad |= more[out] != 0
    if not bad.any():
        return
    i, word = (int(at[0]) for at in np.nonzero(bad))
    part, row = int(parts[i]), out.start + i
    for number, contributor in enumerate(of.holders[part]):
        at, bit = number // _WORD - low, np.uint64(1) << np.uint64(number % _WORD)
        if at != word:
            continue
        twice = more is not None and bool(more[row, at] & bit)
        if twice or not once[row, at] & bit:
            times = "at least 2 times" if twice else "0 times"
            raise ScheduleError(
                f"{_output(memory, i)} holds rank {contributor}'s contribution {times} instead of 1"
            )
    raise AssertionError("a slot has contributions of its part's holders only")


def _output(memory: SlotMemory, i: int) -> str:
    """The i-th slot of all ranks' ``out``, for a message."""
    rank = int(np.searchsorted(np.cumsum(memory.slots.size[Buffer.OUT]), i, side="right"))
    slot = memory.slots.of(Buffer.OUT).start + i - int(memory.slots.first[Buffer.OUT, rank])
    return f"{memory.layout.spec.name}: rank {rank}: out[{slot}]"


def verify(schedule: Schedule, spec: Collective, *, root: int = 0, in_place: bool = False) -> None:
    """Prove that a placed schedule implements a collective, in or out of place.

    Raises ScheduleError, naming step, rank and slot, if a slot is out of range, a move has no
    partner, two moves of a step conflict, something undefined is read, different chunks are added,
    or at the end an output lacks a contribution or holds one twice (permitted only for an
    idempotent collective). Raises Unsupported for an in-place form that does not exist.
    """
    if schedule.vector:
        raise ScheduleError("verify: the schedule is in vector form; place it first")
    if in_place and not spec.in_place:
        raise Unsupported(f"{spec.name} has no in-place form")
    memory = SlotMemory(Layout.of(schedule, spec, root), in_place)
    steps = [
        memory.step(step.moves(), f"step {number}") for number, step in enumerate(schedule.steps)
    ]
    empty = np.flatnonzero(~memory.filled[memory.slots.of(Buffer.OUT)])
    if len(empty):
        raise ScheduleError(f"{_output(memory, int(empty[0]))} is never written")
    inputs = np.bincount(memory.slots.stands[memory.slots.of(Buffer.IN)])
    if inputs.max(initial=0) <= 1 and not any(step.turns for step in steps):
        return  # only copies, and each chunk has one contribution
    of = _Contributions(memory.layout)
    words = -(-int(of.count.max(initial=0)) // _WORD)
    width = max(1, min(words, _BLOCK_BYTES // (8 * max(1, len(memory.slots)))))
    for low in range(0, words, width):
        once = of.begin(memory, low, min(width, words - low))
        more = _carry_out(steps, once, spec.idempotent)
        _expect(memory, of, once, more, low)
