"""Convert a proven MSCCL algorithm to a `Schedule`, so that it can be costed and run like ours.

A file orders its steps by threadblocks and dependencies. A schedule has steps in which all reads
come before all writes. The proof shows which write each read sees. So only the data flow is kept,
and `Levels` assigns each move to the earliest step that its reads and writes allow. A message
becomes one move, from where its sender reads it to where its receiver stores it. A chunk that `rrs`
forwards without storing gets a scratch slot. A slot of a schedule holds one vector chunk; if a file
reuses a slot for several chunks, each chunk gets a separate slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from busbar.errors import ScheduleError, Unsupported
from collectives.formats.msccl import Algorithm
from collectives.formats.proof import ChunkMemory, Proof, Transfer, list_accesses, prove
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer, Move, Slot
from collectives.schedule.schedule import Schedule
from collectives.schedule.verify import verify

_MOST_ROUNDS = 64


@dataclass
class _Slot:
    """A slot's accesses since its last plain write, as numbers of moves; ``plain``: that write."""

    plain: int = -1
    reduces: list[int] = field(default_factory=list)
    # (move, True if it stays inside its rank)
    reads: list[tuple[int, bool]] = field(default_factory=list)
    booked: list[Booking] = field(default_factory=list)


@dataclass(eq=False)
class Booking:
    """A read of a slot's present value by a move that is added later."""

    slot: int
    after: list[int]
    # The moves that wrote to the slot since; True for those that only added to it.
    overwritten: list[tuple[int, bool]] = field(default_factory=list)


class Levels:
    """Constraints between moves: move b comes at least ``weight`` steps after move a.

    Moves are added in the order of a sequential execution, on numbered slots. Only conflicts on
    slots constrain them, by the rules of `schedule.schedule`: a read comes after the write that it
    reads; a plain write comes after every earlier access; a reducing write may share a step with
    messages that read the old value, and with other reducing writes. A read may be *booked* before
    its move is added (a message on its way): writes in the meantime must not come before that move.
    """

    def __init__(self) -> None:
        self.slots: dict[int, _Slot] = {}
        self.edges: list[list[tuple[int, int]]] = []

    def _slot(self, slot: int) -> _Slot:
        return self.slots.setdefault(slot, _Slot())

    def book(self, slot: int) -> Booking:
        """Book a read: a move that is added later reads the present value of a slot."""
        state = self._slot(slot)
        booking = Booking(slot, self._writes(state))
        state.booked.append(booking)
        return booking

    @staticmethod
    def _writes(state: _Slot) -> list[int]:
        return [*state.reduces, *([state.plain] if state.plain >= 0 else [])]

    def booked(self, slot: int) -> list[Booking]:
        """The bookings of a slot whose moves have not been added yet."""
        return list(self._slot(slot).booked)

    def rebook(self, booking: Booking, slot: int) -> None:
        """Let a booking's move read the present value of another slot instead."""
        self._slot(booking.slot).booked.remove(booking)
        state = self._slot(slot)
        booking.slot, booking.after, booking.overwritten = slot, self._writes(state), []
        state.booked.append(booking)

    def add(self, read: Booking, write: int, *, reduce: bool, local: bool, behind: int = -1) -> int:
        """Add a move that reads a booked value and writes a slot; returns the move's number.

        ``behind``: a move whose step must not be later than the new move's; -1 for none.
        """
        me = len(self.edges)
        self.edges.append([(u, 1) for u in read.after])
        if behind >= 0:
            self.edges[me].append((behind, 0))
        for later, adds in read.overwritten:
            self.edges[later].append((me, 0 if adds and not local else 1))
        state = self._slot(read.slot)
        state.booked.remove(read)
        state.reads.append((me, local))
        self._write(me, self._slot(write), reduce)
        return me

    def _write(self, me: int, state: _Slot, reduce: bool) -> None:
        edges = self.edges[me]
        if state.plain >= 0:
            edges.append((state.plain, 1))
        for booking in state.booked:
            booking.overwritten.append((me, reduce))
        others = [(u, inside) for u, inside in state.reads if u != me]
        if reduce:
            edges += [(u, int(inside)) for u, inside in others]
            state.reduces.append(me)
            return
        edges += [(u, 1) for u in state.reduces] + [(u, 1) for u, _ in others]
        state.plain, state.reduces, state.reads = me, [], []

    def solve(self, first: int) -> list[int] | None:
        """The earliest step of every move; step 0 has only the first ``first`` moves.

        None if the constraints contradict each other, such as when two slots swap values.
        """
        level = [int(v >= first > 0) for v in range(len(self.edges))]
        for _ in range(_MOST_ROUNDS):
            changed = False
            for v, waits in enumerate(self.edges):
                least = max((level[u] + weight for u, weight in waits), default=0)
                if least > level[v]:
                    level[v], changed = least, True
            if not changed:
                return level
        return None


class _Flight(NamedTuple):
    """A message that is sent and not yet received: its read, its vector chunk, its connection."""

    booking: Booking
    chunk: int
    connection: tuple[int, int, int]


class _Place(NamedTuple):
    """A rank's slot, and the vector chunk that it holds."""

    rank: int
    slot: Slot
    chunk: int


class _Converter:
    """Makes the moves of one conversion.

    ``staged``: inputs are copied to scratch first, so that outputs may overwrite them in place.
    ``copied``: data that a sent message still needs is copied before it is overwritten.
    """

    def __init__(self, algorithm: Algorithm, proof: Proof, *, staged: bool, copied: bool) -> None:
        self.algorithm = algorithm
        self.layout = proof.layout
        self.graph = proof.graph
        self.staged, self.copied = staged, copied
        in_place = False not in proof.placements
        chunks = [gpu.chunks for gpu in algorithm.gpus]
        self.memory = ChunkMemory(chunks, proof.layout, in_place)
        self.accesses = list_accesses(self.graph, self.memory)
        self.levels = Levels()
        self.moves: list[Move] = []
        # The schedule's slots by number; and their numbers by (slot of the file, vector chunk).
        self.slots: list[_Place] = []
        self.numbers: dict[tuple[int, int], int] = {}
        self.room: list[list[int]] = [[0] * gpu.chunks["s"] for gpu in algorithm.gpus]
        # The chunk in each slot of the file, and the scratch slots that have not been used yet.
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
        schedule = Schedule.of(
            self.algorithm.ngpus, self.layout.nchunks, [steps[at] for at in used], scratch=scratch
        )
        return replace(schedule, held=tuple(np.array(room, np.int64) for room in self.room))

    def _begin(self) -> int:
        """Number the input and output slots; returns how many inputs must be copied first."""
        written = {access.write for access in self.accesses}
        copies: list[tuple[int, int, int, int]] = []
        for gpu in range(self.algorithm.ngpus):
            for i, chunk in enumerate(self.layout.chunks(gpu, Buffer.OUT).tolist()):
                slot = self.memory.at[gpu, "o"][i]
                self.numbers[slot, chunk] = self._add(gpu, Slot(Buffer.OUT, i), chunk)
            self.free |= {slot: i for i, slot in enumerate(self.memory.at[gpu, "s"])}
            for i, chunk in enumerate(self.layout.chunks(gpu, Buffer.IN).tolist()):
                slot = self.memory.at[gpu, "i"][i]
                self.holds[slot] = chunk
                if (slot, chunk) in self.numbers or slot in written or self.staged:
                    copies.append((gpu, i, slot, chunk))
                else:
                    self.numbers[slot, chunk] = self._add(gpu, Slot(Buffer.IN, i), chunk)
        for gpu, i, slot, chunk in copies:
            source = self._add(gpu, Slot(Buffer.IN, i), chunk)
            self._move(self.levels.book(source), self._slot(gpu, slot, chunk))
        return len(copies)

    def _add(self, gpu: int, slot: Slot, chunk: int) -> int:
        """Add a slot of the schedule; returns its number."""
        self.slots.append(_Place(gpu, slot, chunk))
        return len(self.slots) - 1

    def _slot(self, gpu: int, slot: int, chunk: int) -> int:
        """The schedule's slot for a vector chunk that the file keeps in its slot ``slot``."""
        if (slot, chunk) not in self.numbers:
            if slot in self.free:
                at = self.free.pop(slot)
                self.room[gpu][at] = chunk
                number = self._add(gpu, Slot(Buffer.SCRATCH, at), chunk)
            else:
                number = self._fresh(gpu, chunk)
            self.numbers[slot, chunk] = number
        return self.numbers[slot, chunk]

    def _fresh(self, gpu: int, chunk: int) -> int:
        """Add a scratch slot that the file does not have; returns its number."""
        self.room[gpu].append(chunk)
        return self._add(gpu, Slot(Buffer.SCRATCH, len(self.room[gpu]) - 1), chunk)

    def _move(self, read: Booking, write: int, *, reduce: bool = False, behind: int = -1) -> int:
        if self.copied:
            self._save(read, write)
        src, source, _ = self.slots[read.slot]
        dst, target, _ = self.slots[write]
        self.moves.append(Move(src, dst, source, target, reduce))
        return self.levels.add(read, write, reduce=reduce, local=src == dst, behind=behind)

    def _save(self, read: Booking, write: int) -> None:
        """Copy a slot's value before it is overwritten, if messages on their way need it."""
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
        read, write = self.accesses[v]
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


def proven(schedule: Schedule, where: Layout) -> Schedule:
    """The schedule, proven in every placement of its collective. Raises ScheduleError."""
    for in_place in (False, True)[: 1 + where.spec.in_place]:
        verify(schedule, where.spec, root=where.root, in_place=in_place)
    return schedule


def convert(algorithm: Algorithm, proof: Proof | None = None) -> Schedule:
    """An MSCCL algorithm as a placed schedule, proven in every placement of its collective.

    The schedule also runs in placements that the file does not declare. Raises ScheduleError if the
    algorithm is wrong, and Unsupported if it is right but no schedule was found.
    """
    proof = proof or prove(algorithm)
    reason = ""
    for staged, copied in product((False, True), repeat=2):
        converter = _Converter(algorithm, proof, staged=staged, copied=copied)
        try:
            schedule = proven(converter.run(), proof.layout)
        except ScheduleError as error:
            reason = str(error)
        else:
            return replace(schedule, name=algorithm.name or "msccl")
    raise Unsupported(f"{algorithm.name or 'the algorithm'} cannot be made a schedule: {reason}")
