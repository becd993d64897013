"""Convert a placed `Schedule` to an MSCCL algorithm.

Each gpu has one threadblock for sends to each peer, one for receives from each peer, and one for
moves inside the gpu. The order of a schedule's steps within a gpu becomes dependencies between two
threadblocks that access the same chunk. Orders that the runtime keeps anyway are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from busbar.errors import Unsupported
from collectives.formats.msccl import BUFFERS, Algorithm, Gpu, ThreadBlock, ThreadblockStep
from collectives.formats.proof import COLLECTIVES, nchunksperloop
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer, Move, Moves, Slot
from collectives.schedule.schedule import Schedule

# The most chunks of one step; the runtime allows fewer than 72 (MSCCL_MAX_COUNT).
_MOST_COUNT = 64
# More bytes than any message has.
_MAX_BYTES = 1 << 40


class _Key(NamedTuple):
    """What identifies a threadblock: its peers (-1 for none) and its channel."""

    send: int = -1
    recv: int = -1
    chan: int = 0


class _Done(NamedTuple):
    """A step that was added. ``clock``: the last step of each threadblock that precedes it."""

    key: _Key
    number: int
    clock: dict[_Key, int]


@dataclass
class _Block:
    id: int
    steps: list[ThreadblockStep] = field(default_factory=list)
    clock: dict[_Key, int] = field(default_factory=dict)


@dataclass
class _Touched:
    """Accesses of a chunk since its last write."""

    writer: _Done | None = None
    readers: list[_Done] = field(default_factory=list)


class _GpuBuilder:
    """One gpu's threadblocks. Steps are added in an order in which they could run."""

    def __init__(self, rank: int, where: Layout, in_place: bool) -> None:
        self.blocks: dict[_Key, _Block] = {}
        self.touched: dict[tuple[int, int], _Touched] = {}
        self.alias = where.shared(rank) if in_place else {}

    def chunk(self, buffer: int, at: int) -> tuple[int, int]:
        """The memory of a chunk: in place a chunk of ``in`` may be the same as one of ``out``."""
        if buffer == Buffer.IN and at in self.alias:
            return int(Buffer.OUT), self.alias[at]
        return buffer, at

    def add(
        self,
        key: _Key,
        kind: str,
        move: Move,
        reads: Sequence[tuple[int, int]],
        writes: Sequence[tuple[int, int]],
    ) -> None:
        """Add a step that reads and writes chunks, and waits for all conflicting steps."""
        block = self.blocks.setdefault(key, _Block(len(self.blocks)))
        waits = self._waits(key, block, reads, writes)
        source, target = move.from_slot, move.to_slot
        ends = BUFFERS[source.buffer], source.chunk, BUFFERS[target.buffer], target.chunk
        step = ThreadblockStep(0, kind, *ends, source.count)
        for done in waits[:-1]:
            nop = ThreadblockStep(0, "nop", "i", -1, "o", -1, 0, 0, done.number)
            self._append(block, nop, done)
        self._append(block, step, waits[-1] if waits else None)
        number = len(block.steps) - 1
        block.clock[key] = number
        done = _Done(key, number, dict(block.clock))
        for chunk in reads:
            self._at(chunk).readers.append(done)
        for chunk in writes:
            self.touched[chunk] = _Touched(done)

    def _at(self, chunk: tuple[int, int]) -> _Touched:
        return self.touched.setdefault(chunk, _Touched())

    def _append(self, block: _Block, step: ThreadblockStep, waits: _Done | None) -> None:
        if waits is not None:
            step = step._replace(depid=self.blocks[waits.key].id, deps=waits.number)
            target = self.blocks[waits.key].steps
            target[waits.number] = target[waits.number]._replace(hasdep=1)
        block.steps.append(step._replace(s=len(block.steps)))

    def _waits(
        self,
        key: _Key,
        block: _Block,
        reads: Sequence[tuple[int, int]],
        writes: Sequence[tuple[int, int]],
    ) -> list[_Done]:
        """The dependencies of a step, without those that other dependencies imply."""
        conflicts = [t.writer for t in map(self._at, (*reads, *writes)) if t.writer is not None]
        conflicts += [done for chunk in writes for done in self._at(chunk).readers]
        waits = []
        # The latest first: it may have waited for the others.
        for done in sorted(conflicts, key=lambda d: sum(d.clock.values()), reverse=True):
            if done.key == key or block.clock.get(done.key, -1) >= done.number:
                continue
            waits.append(done)
            for other, number in done.clock.items():
                block.clock[other] = max(block.clock.get(other, -1), number)
        return waits

    def threadblocks(self) -> tuple[ThreadBlock, ...]:
        return tuple(
            ThreadBlock(block.id, key.send, key.recv, key.chan, tuple(block.steps))
            for key, block in self.blocks.items()
        )


def _pieces(moves: Moves) -> list[Move]:
    """A step's moves, joined if that is safe, and cut to the length that the runtime allows.

    If a chunk is both sent and added to in the step, chunks are sent one by one: a chunk must leave
    before the sum is written, and a connection buffers only a few chunks.
    """
    unit = moves.unit()
    left = set(zip(*np.stack([unit.src, unit.src_buffer, unit.src_chunk]).tolist(), strict=True))
    came = set(zip(*np.stack([unit.dst, unit.dst_buffer, unit.dst_chunk]).tolist(), strict=True))
    joined = unit if left & came else moves.joined()
    pieces = []
    for move in joined:
        for at in range(0, move.from_slot.count, _MOST_COUNT):
            n = min(_MOST_COUNT, move.from_slot.count - at)
            read, write = (Slot(s.buffer, s.chunk + at, n) for s in (move.from_slot, move.to_slot))
            pieces.append(move._replace(from_slot=read, to_slot=write))
    return pieces


def _add_step(
    gpus: list[_GpuBuilder], moves: list[Move], channels: int, in_place: bool | None
) -> None:
    """Add a step of the schedule: its sends, the moves inside gpus, then its receives."""

    def chunks(rank: int, slot: Slot) -> list[tuple[int, int]]:
        buffer, first, count = slot
        return [gpus[rank].chunk(int(buffer), first + i) for i in range(count)]

    remote = [m for m in moves if m.src != m.dst]
    for m in remote:
        key = _Key(send=m.dst, chan=m.from_slot.chunk % channels)
        gpus[m.src].add(key, "s", m, chunks(m.src, m.from_slot), ())
    local = [m for m in moves if m.src == m.dst]
    changed: set[tuple[int, tuple[int, int]]] = set()
    for m in local:
        read, write = chunks(m.src, m.from_slot), chunks(m.src, m.to_slot)
        if in_place and read == write:
            continue
        if changed & {(m.src, chunk) for chunk in read}:
            raise Unsupported(
                f"rank {m.src}: a move inside the rank reads what another of its step changes"
            )
        changed |= {(m.src, chunk) for chunk in write}
        gpus[m.src].add(_Key(), "re" if m.reduce else "cpy", m, read, write)
    for m in remote:
        key = _Key(recv=m.src, chan=m.from_slot.chunk % channels)
        write = chunks(m.dst, m.to_slot)
        # In an addition the slot that is added to is both source and target.
        kind, read = ("rrc", write) if m.reduce else ("r", [])
        gpus[m.dst].add(key, kind, m._replace(from_slot=m.to_slot), read, write)


def export(
    schedule: Schedule,
    where: Layout,
    *,
    in_place: bool | None = None,
    proto: str = "Simple",
    channels: int = 1,
) -> Algorithm:
    """A placed schedule as an MSCCL algorithm for one placement, or for all placements (None).

    Chunks are spread over ``channels`` by their numbers. Raises Unsupported if the format has no
    name for the collective, or if the collective lacks the placement.
    """
    what, n = where.spec, schedule.nranks
    if what.name not in COLLECTIVES:
        raise Unsupported(f"MSCCL has no collective {what.name}; it has: {', '.join(COLLECTIVES)}")
    if in_place and not what.in_place:
        raise Unsupported(f"{what.name} has no in-place form")
    if channels < 1:
        raise Unsupported(f"{channels} channels; at least 1 is needed")
    shared = what.in_place and in_place is not False
    gpus = [_GpuBuilder(rank, where, shared) for rank in range(n)]
    for moves in schedule.all_moves:
        _add_step(gpus, _pieces(moves), channels, in_place)
    made = []
    for rank, gpu in enumerate(gpus):
        chunks = {BUFFERS[buffer]: len(where.chunks(rank, buffer)) for buffer in Buffer}
        made.append(Gpu(rank, chunks, gpu.threadblocks()))
    return Algorithm(
        name=_title(schedule, what.name),
        proto=proto,
        nchannels=channels,
        nchunksperloop=nchunksperloop(where),
        coll=what.name,
        inplace=shared,
        outofplace=in_place is not True,
        gpus=tuple(made),
        max_bytes=_MAX_BYTES,
        root=where.root,
    )


def _title(schedule: Schedule, collective: str) -> str:
    parts = [f"{key}={value}" for key, value in schedule.parameters]
    return ":".join([f"{collective}_{schedule.name}" if schedule.name else collective, *parts])
