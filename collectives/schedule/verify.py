"""Proof, before anything runs, that a schedule does what its collective asks for.

Every slot's content is a *multiset* of contributions: which vector chunk it stands for, and how
often each rank's share of that chunk is in it. Steps are carried out on those multisets, all reads
before all writes. Sets would accept a contribution that was added twice; multisets refuse it.
Counts are kept as never, once or more, one bit each. A contribution that was added more than once
stays wrong, so no exact count is needed.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from busbar.errors import ScheduleError, Unsupported
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.schedule import Schedule
from collectives.schedule.slot_memory import SlotMemory, SlotStep
from collectives.schedule.spec import Collective

# Bits of all slots that are held at once; of more, so many contributors at a time.
_BLOCK_BYTES = 256 * 2**20
_WORD = 64
Numbers = NDArray[np.int64]
Words = NDArray[np.uint64]


class _Contributions:
    """The contributors of each part, as the specification lists them."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.holders = layout.spec.holders(layout.nranks, layout.root)
        self.count = np.array([len(ranks) for ranks in self.holders], np.int64)

    def begin(self, memory: SlotMemory, low: int, width: int) -> Words:
        """Each slot's contributions at the beginning: ``width`` words of bits from ``low`` on."""
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
        """The number of a rank among its part's holders, whose lists are in the order of ranks."""
        every = np.fromiter(chain.from_iterable(self.holders), np.int64, int(self.count.sum()))
        keys = np.repeat(np.arange(len(self.count)), self.count) * self.layout.nranks + every
        first = np.cumsum(self.count) - self.count
        return np.searchsorted(keys, parts * self.layout.nranks + ranks) - first[parts]

    def wanted(self, low: int, width: int) -> Words:
        """Every part's contributions at the end: each holder's once."""
        left = self.count[:, None] - _WORD * np.arange(low, low + width)
        full = ~np.uint64(0)
        some = (np.uint64(1) << (left.clip(0, _WORD - 1).astype(np.uint64))) - np.uint64(1)
        bits: Words = np.where(left >= _WORD, full, some)
        return bits


def _carry_out(steps: list[SlotStep], once: Words, idempotent: bool) -> Words | None:
    """Carry all steps out on ``once``; return the bits of what is held more than once, if any."""
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

    Raises ScheduleError, naming step, rank and slot, when a slot is out of range, a move has no
    partner, two moves of a step get in each other's way, something undefined is read, different
    chunks are added, or at the end an output lacks a contribution or holds one twice (which only
    an idempotent collective may). Raises Unsupported for an in-place form that does not exist.
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
        return  # copies of the one contribution that a chunk has
    of = _Contributions(memory.layout)
    words = -(-int(of.count.max(initial=0)) // _WORD)
    width = max(1, min(words, _BLOCK_BYTES // (8 * max(1, len(memory.slots)))))
    for low in range(0, words, width):
        once = of.begin(memory, low, min(width, words - low))
        more = _carry_out(steps, once, spec.idempotent)
        _expect(memory, of, once, more, low)
