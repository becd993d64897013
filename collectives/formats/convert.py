"""Converts a proven MSCCL algorithm to a `Schedule`, so that it is costed and run like ours.

A file orders its steps by threadblocks and dependencies, a schedule by steps in which all reads
come before all writes. The proof shows that every read sees one certain write. So only the data
flow is kept, and `collectives.formats.levels` assigns steps to the moves. A message is one move,
from where its sender reads it to where its receiver stores it. A chunk that `rrs` forwards without
storing gets a scratch slot. Our slots hold one vector chunk each; if a file reuses a slot for
several chunks, each gets a slot of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from busbar.errors import ScheduleError, Unsupported
from collectives.formats.graph import Transfer
from collectives.formats.levels import Booking, Levels
from collectives.formats.memory import ChunkMemory
from collectives.formats.msccl import Algorithm
from collectives.formats.prove import Proof, prove
from collectives.formats.races import accesses
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer, Move, Slot
from collectives.schedule.schedule import Schedule
from collectives.schedule.verify import verify


class _Ways(NamedTuple):
    """Options of a conversion, of which the first that is proven is taken.

    ``staged``: inputs are copied away first, so that outputs may overwrite them in place.
    ``copied``: what overwrites data that a message still carries makes a copy of it first.
    """

    staged: bool
    copied: bool


class _Flight(NamedTuple):
    """A message on its way: where it is read, which vector chunk it is, and on which connection."""

    booking: Booking
    chunk: int
    connection: tuple[int, int, int]


class _Place(NamedTuple):
    """A slot of a rank and the vector chunk that it stands for."""

    rank: int
    slot: Slot
    chunk: int


class _Converter:
    def __init__(self, algorithm: Algorithm, proof: Proof, ways: _Ways) -> None:
        self.algorithm = algorithm
        self.layout = proof.layout
        self.graph = proof.graph
        self.ways = ways
        in_place = False not in proof.placements
        self.memory = ChunkMemory(algorithm, proof.layout, in_place)
        self.found = accesses(self.graph, self.memory)
        self.levels = Levels()
        self.moves: list[Move] = []
        # Our slots by number; and their numbers by (slot of the file, vector chunk).
        self.slots: list[_Place] = []
        self.numbers: dict[tuple[int, int], int] = {}
        self.room: list[list[int]] = [[0] * gpu.s_chunks for gpu in algorithm.gpus]
        # The chunk that each slot of the file holds, and the scratch slots still without one.
        self.holds = [-1] * self.memory.size
        self.free: dict[int, int] = {}
        self.flying: dict[int, _Flight] = {}
        # The last move of each connection: messages keep their order.
        self.latest: dict[tuple[int, int, int], int] = {}

    def run(self) -> Schedule:
        first = self._begin()
        for v in self.graph.order:
            if self.graph.nodes[v].step.cnt:
                self._do(v, self.graph.nodes[v])
        level = self.levels.solve(first)
        if level is None:
            raise ScheduleError("moves wait for one another")
        used = sorted(set(level))
        steps: dict[int, list[Move]] = {at: [] for at in used}
        for at, move in zip(level, self.moves, strict=True):
            steps[at].append(move)
        scratch = max(map(len, self.room))
        made = Schedule.of(
            self.algorithm.ngpus, self.layout.nchunks, [steps[at] for at in used], scratch=scratch
        )
        return replace(made, held=tuple(np.array(room, np.int64) for room in self.room))

    def _begin(self) -> int:
        """Name the slots of inputs and outputs, copy inputs that do not stay; count the copies."""
        written = {access.write for access in self.found}
        copies: list[tuple[int, int, int, int]] = []
        for gpu in range(self.algorithm.ngpus):
            outputs = self.layout.chunks(gpu, Buffer.OUT).tolist()
            for i, chunk in enumerate(outputs):
                self._name(gpu, self.memory.at[gpu, "o"][i], chunk, Buffer.OUT, i)
            self.free |= {slot: i for i, slot in enumerate(self.memory.at[gpu, "s"])}
            inputs = self.layout.chunks(gpu, Buffer.IN).tolist()
            for i, chunk in enumerate(inputs):
                slot = self.memory.at[gpu, "i"][i]
                self.holds[slot] = chunk
                if (slot, chunk) in self.numbers or slot in written or self.ways.staged:
                    copies.append((gpu, i, slot, chunk))
                else:
                    self._name(gpu, slot, chunk, Buffer.IN, i)
        for gpu, i, slot, chunk in copies:
            source = len(self.slots)
            self.slots.append(_Place(gpu, Slot(Buffer.IN, i), chunk))
            self._move(self.levels.book(source), self._slot(gpu, slot, chunk))
        return len(copies)

    def _name(self, gpu: int, slot: int, chunk: int, buffer: Buffer, at: int) -> int:
        self.numbers[slot, chunk] = len(self.slots)
        self.slots.append(_Place(gpu, Slot(buffer, at), chunk))
        return len(self.slots) - 1

    def _slot(self, gpu: int, slot: int, chunk: int) -> int:
        """Our slot for a vector chunk where the file has a slot."""
        if (slot, chunk) in self.numbers:
            return self.numbers[slot, chunk]
        if slot in self.free:
            at = self.free.pop(slot)
            self.room[gpu][at] = chunk
            return self._name(gpu, slot, chunk, Buffer.SCRATCH, at)
        made = self._fresh(gpu, chunk)
        self.numbers[slot, chunk] = made
        return made

    def _fresh(self, gpu: int, chunk: int) -> int:
        """A scratch slot that the file does not have."""
        self.room[gpu].append(chunk)
        self.slots.append(_Place(gpu, Slot(Buffer.SCRATCH, len(self.room[gpu]) - 1), chunk))
        return len(self.slots) - 1

    def _move(self, read: Booking, write: int, *, reduce: bool = False, behind: int = -1) -> int:
        if self.ways.copied:
            self._save(read, write)
        src, source, _ = self.slots[read.slot]
        dst, target, _ = self.slots[write]
        self.moves.append(Move(src, dst, source, target, reduce))
        return self.levels.add(read, write, reduce=reduce, local=src == dst, behind=behind)

    def _save(self, read: Booking, write: int) -> None:
        """Copy what messages still carry out of a slot that is about to change."""
        carried = [booking for booking in self.levels.booked(write) if booking is not read]
        if not carried:
            return
        rank, _, chunk = self.slots[write]
        copy = self._fresh(rank, chunk)
        self.levels.add(self.levels.book(write), copy, reduce=False, local=True)
        self.moves.append(Move(rank, rank, self.slots[write].slot, self.slots[copy].slot))
        for booking in carried:
            self.levels.rebook(booking, copy)

    def _do(self, v: int, node: Transfer) -> None:
        does = node.step.operation
        read, write = self.found[v]
        message = self.flying.pop(self.graph.sender[v]) if does.receives else None
        chunk = message.chunk if message else self.holds[read]
        own = self._slot(node.gpu, read, chunk) if does.reads else -1
        if does.writes:
            self.holds[write] = chunk
            into = self._slot(node.gpu, write, chunk)
        elif message:
            into = self._fresh(node.gpu, chunk)
        else:
            into = own
        if message and does.reads and into != own:
            self._move(self.levels.book(own), into)
        if message:
            line = message.connection
            self.latest[line] = self._move(
                message.booking, into, reduce=does.reads, behind=self.latest.get(line, -1)
            )
        elif into != own:
            self._move(self.levels.book(own), into, reduce=does.adds)
        if does.sends:
            line = (node.gpu, node.send, node.chan)
            self.flying[v] = _Flight(self.levels.book(into), chunk, line)


def _proven(schedule: Schedule, where: Layout) -> Schedule:
    for in_place in (False, True)[: 1 + where.spec.in_place]:
        verify(schedule, where.spec, root=where.root, in_place=in_place)
    return schedule


def convert(algorithm: Algorithm, proof: Proof | None = None) -> Schedule:
    """An MSCCL algorithm as a placed schedule, proven in every placement of its collective.

    It also runs in placements that the file does not declare. Raises ScheduleError where the
    algorithm is wrong, Unsupported where it is right but has no schedule.
    """
    proof = proof or prove(algorithm)
    reason = ""
    for ways in (_Ways(s, c) for s in (False, True) for c in (False, True)):
        try:
            made = _proven(_Converter(algorithm, proof, ways).run(), proof.layout)
        except ScheduleError as error:
            reason = str(error)
        else:
            return replace(made, name=algorithm.name or "msccl")
    raise Unsupported(f"{algorithm.name or 'the algorithm'} cannot be made a schedule: {reason}")
