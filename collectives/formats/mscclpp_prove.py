"""Prove that a plan of MSCCL++ gives its collective's result, and convert it to a schedule.

The order of operations is that of MSCCL++'s executor. A threadblock's threads move data in order,
each thread the same part of every chunk. They also signal and wait in order. A nop or a barrier
orders both against each other. The k-th wait on a channel follows the k-th signal to it. A read of
a packet waits for the packet. This order must put each write before the reads of its data, and each
read before the next write. A packet makes only its own data visible, a relaxed signal none. A gpu
must not finish before others have read from it and written to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter

import numpy as np

from busbar.errors import ScheduleError, Unsupported
from collectives.formats.convert import proven
from collectives.formats.mscclpp import EFFECTS, Chunks, ExecutionPlan, PlanOperation, is_packet
from collectives.formats.proof import (
    ChunkMemory,
    Value,
    add_values,
    collective_of,
    expected_values,
    first_rank,
    initial_values,
)
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer, Move, Slot
from collectives.schedule.schedule import Schedule

#: The most operations and moved chunks of a proof, which keeps a bit set per operation.
_MOST_NODES, _MOST_MOVED = 1 << 14, 1 << 17
_PAIRED = ("put", "get", "ppkt")
_RELAXED = ("rlxsignal", "rlxwait")
_Reached = tuple[list[int], list[int]]


@dataclass(frozen=True)
class PlanProof:
    """The result of a proof: the collective's layout, the plan's schedule, and remarks."""

    layout: Layout
    schedule: Schedule
    notes: tuple[str, ...] = ()


@dataclass
class _Node:
    """An operation of a plan, with the gpu, threadblock and number at which it stands.

    ``pieces``: for each piece of data the slots (chunk-sized parts of buffers) that the operation
    reads, and those that it writes.
    """

    gpu: int
    tb: int
    number: int
    operation: PlanOperation
    pieces: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def __str__(self) -> str:
        where = f"gpu {self.gpu}, threadblock {self.tb}, operation {self.number}"
        return f"{where} ({self.operation.name})"


def layout(plan: ExecutionPlan) -> Layout:
    """The layout of a plan's collective, by the number of chunks of gpu 0.

    Raises Unsupported for an unknown collective, ScheduleError if the ranks' parts are no whole
    number of chunks.
    """
    what = collective_of(plan.collective)
    parts = what.parts(plan.ngpus)
    for buffer, of in (("i", what.inputs), ("o", what.outputs)):
        chunks, own = plan.gpus[0].chunks[buffer], len(list(of(plan.ngpus, 0, 0)))
        if chunks and own:
            if chunks % own:
                reason = f"{chunks} chunks of gpu 0 do not fall on {own} parts"
                raise ScheduleError(f"{what.name}: {reason}")
            return Layout(what, plan.ngpus, parts * (chunks // own))
    raise ScheduleError("gpu 0 has no chunks of input or output")


class _Orders:
    """What precedes each operation by ``strong`` orders, which make writes visible, or ``weak``."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.nodes: list[_Node] = []
        self.strong: list[set[int]] = []
        self.weak: list[set[int]] = []
        self.signals: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        self.waits: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        self.barriers: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for gpu in plan.gpus:
            for tb, block in enumerate(gpu.threadblocks):
                self._block(gpu.id, tb, block)
        self._signals()
        self._barriers()

    def _add(self, node: _Node, *before: int) -> int:
        self.nodes.append(node)
        self.strong.append({v for v in before if v >= 0})
        self.weak.append(set())
        return len(self.nodes) - 1

    def _block(self, gpu: int, tb: int, block: tuple[PlanOperation, ...]) -> None:
        """Add a threadblock's nodes: moves in order, signals and waits in order, nop after both."""
        synced, data, control = -1, -1, -1
        met: dict[int, int] = defaultdict(int)
        for number, operation in enumerate(block):
            node = _Node(gpu, tb, number, operation)
            if operation.name in ("nop", "barrier"):
                arrived = self._add(node, synced, data, control)
                synced, data, control = arrived, -1, -1
                if operation.name == "barrier":
                    key = (gpu, operation.barrier, met[operation.barrier])
                    met[operation.barrier] += 1
                    synced = self._add(node, arrived)
                    self.barriers[key] += [arrived, synced]
            elif EFFECTS[operation.name].control:
                control = self._add(node, control if control >= 0 else synced)
                for peer, which in operation.peers:
                    if operation.name in ("signal", "rlxsignal"):
                        self.signals[gpu, peer, which].append(control)
                    else:
                        self.waits[peer, gpu, which].append(control)
            else:
                data = self._add(node, data if data >= 0 else synced)

    def _signals(self) -> None:
        for key in sorted({*self.signals, *self.waits}):
            signals, waits = self.signals[key], self.waits[key]
            for ends in (signals, waits):
                blocks = {(self.nodes[v].gpu, self.nodes[v].tb) for v in ends}
                if len(blocks) > 1:
                    reason = "its channel is that of another threadblock, too: the order is open"
                    raise Unsupported(f"{self.nodes[ends[-1]]}: {reason}")
            if len(waits) > len(signals):
                node = self.nodes[waits[len(signals)]]
                raise ScheduleError(f"{node}: deadlock: gpu {key[0]} signals {len(signals)} times")
            for signal, wait in zip(signals, waits, strict=False):
                names = {self.nodes[v].operation.name for v in (signal, wait)}
                into = self.weak if names & {*_RELAXED} else self.strong
                into[wait].add(signal)

    def _barriers(self) -> None:
        for (gpu, id, _), ends in self.barriers.items():
            arrived, left = ends[::2], ends[1::2]
            wanted = {self.nodes[v].operation.threadblocks for v in arrived}
            if wanted != {len(arrived)}:
                reason = f"barrier {id} of gpu {gpu} is for {sorted(wanted)} threadblocks"
                node = self.nodes[arrived[0]]
                raise ScheduleError(f"{node}: deadlock: {reason}, and {len(arrived)} come to it")
            for v in left:
                self.strong[v].update(arrived)

    def order(self) -> list[int]:
        """All operations in an order that respects both kinds. Raises ScheduleError for a cycle."""
        before = {v: self.strong[v] | self.weak[v] for v in range(len(self.nodes))}
        try:
            return list(TopologicalSorter(before).static_order())
        except CycleError as error:
            circle = list(dict.fromkeys(str(self.nodes[v]) for v in error.args[1]))
            rest = ", which waits for ".join([*circle[1:4], circle[0]])
            raise ScheduleError(f"{circle[0]}: deadlock: it waits for {rest}") from None

    def reached(self, order: list[int]) -> _Reached:
        """For each operation the bit sets of its predecessors: by strong orders, and by all."""
        certain, at_all = [0] * len(order), [0] * len(order)
        for v in order:
            for u in self.strong[v]:
                certain[v] |= certain[u] | 1 << u
            for u in self.strong[v] | self.weak[v]:
                at_all[v] |= at_all[u] | 1 << u
        return certain, at_all


class _Memory:
    """Numbered slots for all chunks of all buffers; in place ``i`` and ``o`` share slots."""

    def __init__(self, plan: ExecutionPlan, where: Layout) -> None:
        self.plan = plan
        self.chunks = ChunkMemory([gpu.chunks for gpu in plan.gpus], where, plan.inplace)
        #: The gpu of each slot.
        self.home = {slot: gpu for (gpu, _), slots in self.chunks.at.items() for slot in slots}
        self.kinds: dict[int, set[bool]] = defaultdict(set)

    def slots(self, node: _Node, chunks: Chunks, packet: bool) -> list[int]:
        """The slots of chunks. Raises ScheduleError, or Unsupported for mixed scratch."""
        room = self.chunks.at[chunks.gpu, chunks.buffer]
        most = min(len(room), self.plan.gpus[chunks.gpu].chunks[chunks.buffer] or len(room))
        if chunks.first + chunks.size > most:
            last = f"{chunks.buffer}[{chunks.first + chunks.size - 1}] of gpu {chunks.gpu}"
            raise ScheduleError(f"{node}: {last} is out of range; there are {most} chunks")
        if packet and chunks.buffer != "s":
            raise ScheduleError(f"{node}: packets in {chunks.buffer}; they are in scratch alone")
        if chunks.buffer == "s":
            self.kinds[chunks.gpu].add(packet)
            if len(self.kinds[chunks.gpu]) > 1:
                reason = f"gpu {chunks.gpu} has packets and plain chunks in scratch, which overlap"
                raise Unsupported(f"{node}: {reason}")
        return room[chunks.first : chunks.first + chunks.size]


def _fill(node: _Node, memory: _Memory) -> None:
    """Set the slots of each piece of an operation. Raises as `_Memory.slots` does."""
    operation = node.operation
    effect = EFFECTS[operation.name]
    sources = [
        memory.slots(node, one, is_packet(effect.reads_packets, n))
        for n, one in enumerate(operation.sources)
    ]
    targets = [
        memory.slots(node, one, is_packet(effect.writes_packets, n))
        for n, one in enumerate(operation.targets)
    ]
    if operation.name in _PAIRED:
        if len(sources) != len(targets):
            raise ScheduleError(f"{node}: {len(sources)} sources for {len(targets)} destinations")
        if operation.name == "get" and any(
            a.first != b.first for a, b in zip(operation.sources, operation.targets, strict=True)
        ):
            raise Unsupported(f"{node}: a get between other offsets is not known here")
        for one, other in zip(sources, targets, strict=True):
            node.pieces += [([a], [b]) for a, b in zip(one, other, strict=True)]
        return
    adds = operation.name not in ("copy", "cpkt", "upkt", "rppkt")
    if not adds and len(sources) > 1:
        raise ScheduleError(f"{node}: {len(sources)} sources, of which it takes one")
    for at in range(len(sources[0])):
        node.pieces.append(([one[at] for one in sources], [one[at] for one in targets]))


def _packets(orders: _Orders) -> set[int]:
    """Add the orders that packets cause; returns the slots of packets. Raises ScheduleError."""
    writers: dict[int, int] = {}
    readers: list[tuple[int, int]] = []
    for v, node in enumerate(orders.nodes):
        effect = EFFECTS[node.operation.name]
        for reads, writes in node.pieces:
            for n, slot in enumerate(writes):
                if is_packet(effect.writes_packets, n):
                    if slot in writers:
                        raise ScheduleError(
                            f"{node}: it writes packets that {orders.nodes[writers[slot]]} writes"
                        )
                    writers[slot] = v
            readers += [
                (v, slot) for n, slot in enumerate(reads) if is_packet(effect.reads_packets, n)
            ]
    for v, slot in readers:
        if slot not in writers:
            raise ScheduleError(f"{orders.nodes[v]}: deadlock: nobody writes packets that it reads")
        orders.weak[v].add(writers[slot])
    return set(writers)


def _races(orders: _Orders, order: list[int], reached: _Reached, packets: set[int]) -> None:
    """Raise ScheduleError if nothing orders two accesses to a slot, one of them a write."""
    certain, at_all = reached
    place = {v: n for n, v in enumerate(order)}
    accesses: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    for v in order:
        for reads, writes in orders.nodes[v].pieces:
            for slot in {*reads, *writes} - packets:
                accesses[slot].append((v, slot in writes))
    for uses in accesses.values():
        for n, (v, changes) in enumerate(uses):
            for u, wrote in uses[:n]:
                if u == v or not (changes or wrote):
                    continue
                known = certain[v] if wrote else at_all[v]
                if not known >> u & 1:
                    first, second = sorted((u, v), key=place.__getitem__)
                    raise ScheduleError(
                        f"{orders.nodes[second]}: race: nothing orders it and "
                        f"{orders.nodes[first]}, which have a chunk in common"
                    )


def _ends(
    orders: _Orders, order: list[int], reached: _Reached, packets: set[int], memory: _Memory
) -> None:
    """Raise ScheduleError if a gpu may finish while another gpu still uses its memory.

    A gpu's last operations must come after other gpus' reads from it and, by a strong order, after
    their writes to it. Packets in scratch are not checked, since they are no result.
    """
    certain, at_all = reached
    known: dict[int, list[int]] = {gpu.id: [0, 0] for gpu in orders.plan.gpus}
    for v, node in enumerate(orders.nodes):
        known[node.gpu][0] |= certain[v] | 1 << v
        known[node.gpu][1] |= at_all[v] | 1 << v
    for v in order:
        for reads, writes in orders.nodes[v].pieces:
            for slot in {*reads, *writes} - packets:
                gpu = memory.home[slot]
                seen = known[gpu][0 if slot in writes else 1]
                if not seen >> v & 1:
                    verb = "written to" if slot in writes else "read from"
                    raise ScheduleError(
                        f"{orders.nodes[v]}: race: gpu {gpu} may be done before it has {verb} its"
                        f" {memory.chunks.name(slot, gpu)}: no wait there follows it"
                    )


class _Run:
    """Executes the plan on symbolic values in one order, and records its moves."""

    def __init__(self, plan: ExecutionPlan, where: Layout, memory: _Memory) -> None:
        self.plan, self.layout, self.memory, self.home = plan, where, memory.chunks, memory.home
        self.holds: dict[int, Value] = {}
        # The schedule's slot for each slot of the plan; another one after another chunk is written.
        self.ours: dict[int, tuple[int, Slot]] = {}
        self.named: dict[tuple[int, int], tuple[int, Slot]] = {}
        self.room: list[list[int]] = [[] for _ in plan.gpus]
        self.moves: list[Move] = []
        for gpu in plan.gpus:
            out = where.chunks(gpu.id, Buffer.OUT).tolist()
            for n, (slot, chunk) in enumerate(zip(self.memory.at[gpu.id, "o"], out, strict=False)):
                self.named[slot, chunk] = gpu.id, Slot(Buffer.OUT, n)
        own = [where.chunks(gpu.id, Buffer.IN).tolist() for gpu in plan.gpus]
        for slot, value in initial_values(self.memory):
            rank = first_rank(value.ranks)
            self.holds[slot] = value
            self.ours[slot] = rank, Slot(Buffer.IN, own[rank].index(value.chunk))

    def do(self, node: _Node) -> None:
        """Execute an operation. Raises ScheduleError if values cannot be added or read."""
        for reads, writes in node.pieces:
            values = []
            for slot in reads:
                if slot not in self.holds:
                    name = self.memory.name(slot, self.home[slot])
                    where = f"{name} of gpu {self.home[slot]}"
                    raise ScheduleError(f"{node}: it reads {where}, where nothing is written")
                values.append(self.holds[slot])
            total = values[0]
            for value in values[1:]:
                total = add_values(node, total, value)
            self._moved(reads, writes, total.chunk)
            for slot in writes:
                self.holds[slot] = total

    def _moved(self, reads: list[int], writes: list[int], chunk: int) -> None:
        """Add the moves of one piece: the sum at its first destination, then copies of the sum."""
        first = next((slot for slot in writes if slot in reads), writes[0])
        parts = sorted(reads, key=lambda slot: slot != first) if len(reads) > 1 else reads
        sources = [self.ours[slot] for slot in parts]
        target = self._slot(first, chunk)
        self._move(sources[0], target)
        for source in sources[1:]:
            self._move(source, target, reduce=True)
        self.ours[first] = target
        for slot in writes:
            if slot != first:
                other = self._slot(slot, chunk)
                self._move(target, other)
                self.ours[slot] = other

    def _slot(self, slot: int, chunk: int) -> tuple[int, Slot]:
        """The schedule's slot for a chunk in a slot of the plan: in the output, else in scratch."""
        if (slot, chunk) not in self.named:
            rank = self.home[slot]
            self.room[rank].append(chunk)
            self.named[slot, chunk] = rank, Slot(Buffer.SCRATCH, len(self.room[rank]) - 1)
        return self.named[slot, chunk]

    def _move(
        self, source: tuple[int, Slot], target: tuple[int, Slot], *, reduce: bool = False
    ) -> None:
        if source != target:
            self.moves.append(Move(source[0], target[0], source[1], target[1], reduce))

    def check_result(self) -> None:
        """Raise ScheduleError unless every output chunk has each rank's share once."""
        for gpu, slot, want in expected_values(self.memory):
            value, target = self.holds.get(slot), self.named[slot, want.chunk]
            if value != want:
                raise ScheduleError(f"gpu {gpu}: o[{target[1].chunk}] {_lack(value, want)}")
            self._move(self.ours[slot], target)

    def schedule(self) -> Schedule:
        """The moves in steps, each as early as its reads and writes allow."""
        read: dict[tuple[object, ...], int] = defaultdict(lambda: -1)
        wrote: dict[tuple[object, ...], int] = defaultdict(lambda: -1)
        steps: list[list[Move]] = []
        for move in self.moves:
            source, target = self._key(move.src, move.from_slot), self._key(move.dst, move.to_slot)
            level = max(wrote[source], wrote[target], read[target]) + 1
            read[source] = max(read[source], level)
            wrote[target] = level
            steps += [[] for _ in range(level + 1 - len(steps))]
            steps[level].append(move)
        schedule = Schedule.of(
            self.plan.ngpus, self.layout.nchunks, steps, scratch=max(map(len, self.room))
        )
        held = tuple(np.array(room, np.int64) for room in self.room)
        return replace(schedule, held=held, name=self.plan.name or "mscclpp")

    def _key(self, rank: int, slot: Slot) -> tuple[object, ...]:
        """A key for a slot; a vector chunk has the same key in the input and in the output."""
        if slot.buffer is Buffer.SCRATCH:
            return rank, "s", slot.chunk
        return rank, "v", int(self.layout.chunks(rank, slot.buffer)[slot.chunk])


def _lack(got: Value | None, want: Value) -> str:
    """A phrase that says what is wrong with an output chunk."""
    if got is None:
        return f"is never written, but chunk {want.chunk} of the result belongs there"
    if got.chunk != want.chunk:
        return f"ends with chunk {got.chunk}, but chunk {want.chunk} belongs there"
    missing = want.ranks & ~got.ranks
    if missing:
        return f"lacks rank {first_rank(missing)}'s share of chunk {want.chunk}"
    return f"has a share of chunk {want.chunk} that is not its"


def _refined(plan: ExecutionPlan) -> ExecutionPlan:
    """Cut chunks so that each of the threadblocks that share an operation moves whole chunks.

    Raises Unsupported if threadblocks share operations in groups of several sizes.
    """
    sizes = {operation.share[1] for *_, operation in plan.operations()} - {1}
    if not sizes:
        return plan
    if len(sizes) > 1:
        raise Unsupported(f"threadblocks share operations in groups of {sorted(sizes)}")
    (by,) = sizes

    def finer(chunks: tuple[Chunks, ...], share: tuple[int, int]) -> tuple[Chunks, ...]:
        at, of = share
        return tuple(
            one._replace(first=one.first * by + (at * one.size if of > 1 else 0),
                         size=one.size * (1 if of > 1 else by))
            for one in chunks
        )  # fmt: skip

    gpus = [
        replace(
            gpu,
            chunks={letter: count * by for letter, count in gpu.chunks.items()},
            threadblocks=tuple(
                tuple(
                    replace(one, sources=finer(one.sources, one.share),
                            targets=finer(one.targets, one.share))
                    for one in block
                )
                for block in gpu.threadblocks
            ),
        )
        for gpu in plan.gpus
    ]  # fmt: skip
    return replace(plan, gpus=tuple(gpus))


def prove(plan: ExecutionPlan) -> PlanProof:
    """Prove a plan in the placement that it states.

    Raises ScheduleError, naming gpu, threadblock and operation, for a deadlock, a race, a chunk out
    of range, a read before any write, a share added twice and a wrong result. Raises Unsupported
    for unknown operations and collectives, and for a plan that is too large.
    """
    for gpu, tb, number, operation in plan.operations():
        if operation.unproven:
            node = _Node(gpu, tb, number, operation)
            raise Unsupported(f"{node} is not proven: {operation.unproven}")
    plan = _refined(plan)
    where = layout(plan)
    orders = _Orders(plan)
    moved = sum(one.size for *_, op in plan.operations() for one in (*op.sources, *op.targets))
    if len(orders.nodes) > _MOST_NODES or moved > _MOST_MOVED:
        raise Unsupported(f"{len(orders.nodes)} operations of {moved} chunks: too many to prove")
    memory = _Memory(plan, where)
    for node in orders.nodes:
        if not EFFECTS[node.operation.name].control:
            _fill(node, memory)
    packets = _packets(orders)
    order = orders.order()
    reached = orders.reached(order)
    _races(orders, order, reached, packets)
    _ends(orders, order, reached, packets, memory)
    run = _Run(plan, where, memory)
    for v in order:
        run.do(orders.nodes[v])
    run.check_result()
    schedule = run.schedule()
    try:
        proven(schedule, where)
    except ScheduleError as error:
        raise Unsupported(f"it is right, but has no schedule here: {error}") from None
    return PlanProof(where, schedule, tuple(_notes(plan, orders)))


def _notes(plan: ExecutionPlan, orders: _Orders) -> Iterator[str]:
    """Remarks on properties that are correct but may be unexpected."""
    idle = [key for key, signals in orders.signals.items() if len(signals) > len(orders.waits[key])]
    if idle:
        a, b, _ = idle[0]
        yield f"{len(idle)} channels have signals that nobody waits for, as gpu {a}'s to gpu {b}"
    sizes = {gpu.chunks["s"] for gpu in plan.gpus}
    if len(sizes) > 1:
        yield f"gpus have unlike scratch: {sorted(sizes)} chunks"
