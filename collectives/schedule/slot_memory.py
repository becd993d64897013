"""Check that each step of a schedule can be carried out; `verify` says whether the result is right.

Refused are slots out of range, moves that conflict, reads of slots that nobody has written, and
additions of different chunks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import ScheduleError
from collectives.schedule.layout import Layout, Slots
from collectives.schedule.moves import Buffer, Moves

_NEVER = -1
Numbers = NDArray[np.int64]
Rows = NDArray[np.int32]


class SlotStep(NamedTuple):
    """A step's unit moves by the slots that they read and write, copies before additions.

    ``plain``: how many are copies. ``turns``: the additions by whether a slot gains its first, its
    second and so on, so that no turn adds twice to one slot.
    """

    read: Rows
    write: Rows
    plain: int
    turns: tuple[NDArray[np.intp], ...]


class SlotMemory:
    """The slots of all ranks; in place a slot of ``in`` that is also one of ``out`` is that one."""

    def __init__(self, layout: Layout, in_place: bool) -> None:
        self.layout, self.in_place = layout, in_place
        self.slots = Slots(layout)
        self.at = np.arange(len(self.slots), dtype=np.int32)
        if in_place:
            self._alias()
        inside = self.slots.of(Buffer.IN)
        self.filled = np.zeros(len(self.slots), bool)
        self.filled[self.at[inside]] = True
        # What last happened to a slot: a mark of the step, or a place among the step's moves.
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
        """A step's checked moves; in-place copies to self are dropped."""
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
        """A plain write shares its slot with no other access of the step."""
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
        """A slot that is read has been written, and stands for the chunk of the slot written."""
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
        """The places of the additions, in turns that add to no slot twice."""
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
