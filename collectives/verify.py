"""Proof, before anything runs, that a schedule does what its collective asks for.

Every slot's content is a *multiset* of contributions: which vector chunk it stands for, and how
often each rank's share of that chunk is in it. Steps are carried out on those counts, all reads
before all writes. Sets would accept a contribution that was added twice; counts refuse it.
The counts of different ranks never mix, so large schedules are proven a block of contributors at
a time, and memory stays bounded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collectives.errors import ScheduleError, Unsupported
from collectives.layout import Layout
from collectives.moves import Buffer, Moves
from collectives.schedule import Schedule
from collectives.spec import Collective

__all__ = ["verify"]

_BLOCK_BYTES = 256 * 2**20
_EMPTY = -1
# Counts stop here: whatever is held so often is wrong, and no sum of counts may come round to 1.
_MOST = 999


class _Memory:
    """The physical slots of all ranks, as one numbered row each."""

    def __init__(self, schedule: Schedule, layout: Layout, in_place: bool) -> None:
        self.layout = layout
        self.nranks = schedule.nranks
        self.held = {
            buffer: [layout.chunks(rank, buffer) for rank in range(schedule.nranks)]
            for buffer in (Buffer.IN, Buffer.OUT)
        }
        self.held[Buffer.SCRATCH] = [schedule.scratch_chunks(r) for r in range(schedule.nranks)]
        width = max([1] + [len(c) for held in self.held.values() for c in held])
        self.size = np.zeros((3, schedule.nranks), np.int64)
        self.at = np.full((3, schedule.nranks, width), _EMPTY, np.int64)
        self.rows = 0
        for rank in range(schedule.nranks):
            self._place(rank, in_place)
        # The chunk that each row stands for, which gives the slot its size.
        self.stands = np.full(self.rows, _EMPTY)
        for buffer, held in self.held.items():
            for rank, chunks in enumerate(held):
                self.stands[self.at[buffer, rank, : len(chunks)]] = chunks

    def _place(self, rank: int, in_place: bool) -> None:
        mine, want = self.held[Buffer.IN][rank], self.held[Buffer.OUT][rank]
        room = self.held[Buffer.SCRATCH][rank]
        self.size[:, rank] = len(mine), len(want), len(room)
        self.at[Buffer.OUT, rank, : len(want)] = self._fresh(len(want))
        self.at[Buffer.IN, rank, : len(mine)] = self._fresh(len(mine))
        if in_place:
            position = {int(chunk): i for i, chunk in enumerate(want)}
            for i, chunk in enumerate(mine):
                if int(chunk) in position:
                    out = self.at[Buffer.OUT, rank, position[int(chunk)]]
                    self.at[Buffer.IN, rank, i] = out
        self.at[Buffer.SCRATCH, rank, : len(room)] = self._fresh(len(room))

    def _fresh(self, n: int) -> NDArray[np.int64]:
        rows = np.arange(self.rows, self.rows + n)
        self.rows += n
        return rows


def _check_ranges(m: Moves, memory: _Memory, where: str) -> None:
    for end, ranks, buffers, chunks in (
        ("from", m.src, m.src_buffer, m.src_chunk),
        ("to", m.dst, m.dst_buffer, m.dst_chunk),
    ):
        bad = (ranks < 0) | (ranks >= memory.nranks) | (buffers < 0) | (buffers > 2)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise ScheduleError(
                f"{where}: move {i} has no partner: its {end} end is rank {ranks[i]} of"
                f" {memory.nranks}, buffer {buffers[i]}"
            )
        size = memory.size[buffers, ranks]
        bad = (chunks < 0) | (m.count < 1) | (chunks + m.count > size)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise ScheduleError(
                f"{where}: rank {ranks[i]}: slot {Buffer(int(buffers[i])).name.lower()}"
                f"[{chunks[i]}+{m.count[i]}] is out of range; the buffer has {size[i]} chunks"
            )


def _check_hazards(m: Moves, read: NDArray[np.int64], write: NDArray[np.int64], where: str) -> None:
    plain, added = write[~m.reduce], write[m.reduce]
    slots, times = np.unique(plain, return_counts=True)
    clash = np.concatenate(
        [slots[times > 1], np.intersect1d(slots, read), np.intersect1d(slots, added)]
    )
    if len(clash):
        i = int(np.flatnonzero((write == clash[0]) & ~m.reduce)[0])
        raise ScheduleError(
            f"{where}: rank {m.dst[i]}: {Buffer(int(m.dst_buffer[i])).name.lower()}"
            f"[{m.dst_chunk[i]}] is written plainly while another move of the step uses it"
        )


def _trace(schedule: Schedule, memory: _Memory, in_place: bool) -> list[tuple[Moves, ...]]:
    """Checked unit moves with their physical rows, step by step; in-place copies to self dropped."""
    steps = []
    for number, step in enumerate(schedule.all_moves):
        where = f"step {number}"
        _check_ranges(step, memory, where)
        m = step.unit()
        read = memory.at[m.src_buffer, m.src, m.src_chunk]
        write = memory.at[m.dst_buffer, m.dst, m.dst_chunk]
        real = (read != write) | m.reduce
        m, read, write = m.where(real), read[real], write[real]
        if not in_place and (m.dst_buffer == Buffer.IN).any():
            i = int(np.flatnonzero(m.dst_buffer == Buffer.IN)[0])
            raise ScheduleError(
                f"{where}: rank {m.dst[i]}: in[{m.dst_chunk[i]}] is written, but out of place"
                " the input belongs to the caller"
            )
        _check_hazards(m, read, write, where)
        steps.append((m, read, write))
    return steps  # type: ignore[return-value]


def _run(
    steps: list[tuple[Moves, NDArray[np.int64], NDArray[np.int64]]],
    memory: _Memory,
    label: NDArray[np.int64],
    counts: NDArray[np.int16],
) -> None:
    for number, (m, read, write) in enumerate(steps):
        empty = label[read] == _EMPTY
        if empty.any():
            i = int(np.flatnonzero(empty)[0])
            raise ScheduleError(
                f"step {number}: rank {m.src[i]} sends {Buffer(int(m.src_buffer[i])).name.lower()}"
                f"[{m.src_chunk[i]}] to rank {m.dst[i]} before anything was written there"
            )
        labels, values = label[read], counts[read]
        plain = ~m.reduce
        wrong = plain & (labels != memory.stands[write])
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            raise ScheduleError(
                f"step {number}: rank {m.dst[i]}: chunk {labels[i]} from rank {m.src[i]} is written"
                f" to {Buffer(int(m.dst_buffer[i])).name.lower()}[{m.dst_chunk[i]}], which stands"
                f" for chunk {memory.stands[write[i]]}: chunks may differ in size"
            )
        label[write[plain]], counts[write[plain]] = labels[plain], values[plain]
        if plain.all():
            continue
        target = write[m.reduce]
        wrong = label[target] != labels[m.reduce]
        if wrong.any():
            i = int(np.flatnonzero(m.reduce)[np.flatnonzero(wrong)[0]])
            raise ScheduleError(
                f"step {number}: rank {m.dst[i]}: chunk {labels[i]} from rank {m.src[i]} is added"
                f" to {Buffer(int(m.dst_buffer[i])).name.lower()}[{m.dst_chunk[i]}], which holds "
                + ("nothing" if label[write[i]] == _EMPTY else f"chunk {label[write[i]]}")
            )
        order = np.argsort(target, kind="stable")
        rows, first = np.unique(target[order], return_index=True)
        added = np.add.reduceat(values[m.reduce][order], first, axis=0, dtype=np.int32)
        most = 1 if memory.layout.spec.idempotent else _MOST
        counts[rows] = np.minimum(counts[rows] + added, most)


def _expect(
    memory: _Memory, layout: Layout, label: NDArray[np.int64], counts: NDArray[np.int16], low: int
) -> None:
    holders = layout.spec.holders(layout.nranks, layout.root)
    width = counts.shape[1]
    wanted = np.zeros((len(holders), width), np.int16)
    for part, ranks in enumerate(holders):
        inside = [rank - low for rank in ranks if low <= rank < low + width]
        wanted[part, inside] = 1
    for rank in range(memory.nranks):
        chunks = memory.held[Buffer.OUT][rank]
        rows = memory.at[Buffer.OUT, rank, : len(chunks)]
        bad = (label[rows] != chunks) | (counts[rows] != wanted[chunks // layout.split]).any(axis=1)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise ScheduleError(_complaint(rank, i, rows[i], chunks[i], layout, label, counts, low))


def _complaint(
    rank: int,
    i: int,
    row: int,
    chunk: int,
    layout: Layout,
    label: NDArray[np.int64],
    counts: NDArray[np.int16],
    low: int,
) -> str:
    head = f"{layout.spec.name}: rank {rank}: out[{i}]"
    if label[row] == _EMPTY:
        return f"{head} is never written"
    if label[row] != chunk:
        return f"{head} ends holding chunk {label[row]} instead of chunk {chunk}"
    holders = layout.spec.holders(layout.nranks, layout.root)[chunk // layout.split]
    for contributor in range(low, low + counts.shape[1]):
        got, want = int(counts[row, contributor - low]), int(contributor in holders)
        if got != want:
            return f"{head} holds rank {contributor}'s contribution {got} times instead of {want}"
    return head


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
    layout = Layout.of(schedule, spec, root)
    memory = _Memory(schedule, layout, in_place)
    steps = _trace(schedule, memory, in_place)
    n = schedule.nranks
    block = max(1, min(n, _BLOCK_BYTES // (2 * max(1, memory.rows))))
    for low in range(0, n, block):
        label = np.full(memory.rows, _EMPTY, np.int64)
        counts = np.zeros((memory.rows, min(block, n - low)), np.int16)
        for rank, chunks in enumerate(memory.held[Buffer.IN]):
            rows = memory.at[Buffer.IN, rank, : len(chunks)]
            label[rows] = chunks
            if low <= rank < low + counts.shape[1]:
                counts[rows, rank - low] = 1
        _run(steps, memory, label, counts)  # type: ignore[arg-type]
        _expect(memory, layout, label, counts, low)
