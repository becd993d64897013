"""Proof that an MSCCL algorithm gives its collective's result under every timing of its gpus.

Without deadlock and races every order that the graph allows gives the same values, so one of them
is carried out. A value is the vector chunk that it belongs to and the multiset of ranks whose
shares are in it; as no share may ever be in it twice, that is a set, and an addition of two sets
that meet is refused on the spot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from busbar.errors import ScheduleError, Unsupported
from collectives.formats.graph import OrderGraph, Transfer, build
from collectives.formats.memory import ChunkMemory, layout
from collectives.formats.msccl import Algorithm
from collectives.formats.races import Access, accesses, check
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer


class Value(NamedTuple):
    """A vector chunk and whose shares are in it: bit r for rank r."""

    chunk: int
    ranks: int


# Chunks that single steps may stand for, beside a node for each step, and chunks of all buffers.
_MOST_MOVED = 1 << 18
_MOST_HELD = 1 << 22


@dataclass(frozen=True)
class Proof:
    """The result of a proof: the collective's layout, and the placements that the file may run in.

    ``notes`` are sentences on what works but may surprise.
    """

    layout: Layout
    graph: OrderGraph
    placements: tuple[bool, ...]
    notes: tuple[str, ...] = ()


class _Run:
    """The execution of the graph in one order, on values."""

    def __init__(self, graph: OrderGraph, memory: ChunkMemory, found: list[Access]) -> None:
        self.graph = graph
        self.memory = memory
        self.found = found
        self.holds: list[Value | None] = [None] * memory.size
        self.writer = [-1] * memory.size
        # What nodes have sent and nobody has received yet.
        self.flying: dict[int, Value] = {}
        for gpu in memory.algorithm.gpus:
            mine = set(memory.layout.chunks(gpu.id, Buffer.IN).tolist())
            for slot, chunk in zip(memory.at[gpu.id, "i"], memory.holds(gpu.id, "i"), strict=True):
                if chunk in mine:
                    self.holds[slot] = Value(chunk, 1 << gpu.id)

    def run(self) -> None:
        for v in self.graph.order:
            node = self.graph.nodes[v]
            if node.step.cnt:
                self._do(v, node)

    def _do(self, v: int, node: Transfer) -> None:
        does = node.step.operation
        if node.step.type == "ra":
            raise ScheduleError(
                f"{node}: it adds residuals from outside the collective, so the result is not its"
            )
        message = self.flying.pop(self.graph.sender[v]) if does.receives else None
        own = self._read(node, self.found[v].read) if does.reads else None
        value = self._sum(node, message, own) if message and own else (message or own)
        if does.adds:
            value = self._sum(node, value, self._read(node, self.found[v].write))
        assert value is not None  # every type that moves chunks receives or reads
        if does.sends:
            self.flying[v] = value
        if does.writes:
            self.holds[self.found[v].write] = value
            self.writer[self.found[v].write] = v

    def _read(self, node: Transfer, slot: int) -> Value:
        value = self.holds[slot]
        if value is None:
            name = self.memory.name(slot, node.gpu)
            raise ScheduleError(f"{node}: it reads {name}, where nothing has been written")
        return value

    def _sum(self, node: Transfer, one: Value | None, other: Value | None) -> Value:
        assert one is not None and other is not None
        if one.chunk != other.chunk:
            raise ScheduleError(f"{node}: it adds chunk {one.chunk} to chunk {other.chunk}")
        twice = one.ranks & other.ranks
        if twice:
            raise ScheduleError(
                f"{node}: it adds rank {_first(twice)}'s share of chunk {one.chunk} a second time"
            )
        return Value(one.chunk, one.ranks | other.ranks)

    def check_result(self) -> None:
        """Every output chunk holds every share exactly once."""
        where = self.memory.layout
        holders = [
            sum(1 << r for r in ranks) for ranks in where.spec.holders(where.nranks, where.root)
        ]
        for gpu in range(where.nranks):
            for slot, chunk in zip(
                self.memory.at[gpu, "o"], where.chunks(gpu, Buffer.OUT).tolist(), strict=False
            ):
                want = Value(chunk, holders[chunk // where.split])
                if self.holds[slot] != want:
                    raise ScheduleError(self._complaint(gpu, slot, want))

    def _complaint(self, gpu: int, slot: int, want: Value) -> str:
        got, v = self.holds[slot], self.writer[slot]
        name = self.memory.name(slot, gpu)
        head = f"gpu {gpu}: {name} is never written" if v < 0 else f"{self.graph.nodes[v]}: {name}"
        wanted = f"chunk {want.chunk} of {self.memory.layout.spec.name}'s result belongs there"
        if got is None or v < 0:
            return f"{head}, but {wanted}"
        if got.chunk != want.chunk:
            return f"{head} is last written here with chunk {got.chunk}, but {wanted}"
        lack = want.ranks & ~got.ranks
        who = f"lacks rank {_first(lack)}'s share" if lack else "has a share that is not its"
        return f"{head} is last written here, and {who} of chunk {want.chunk}"


def _first(ranks: int) -> int:
    return (ranks & -ranks).bit_length() - 1


def _overwrites(algorithm: Algorithm, graph: OrderGraph) -> tuple[str, ...]:
    for node in graph.nodes:
        if node.step.cnt and node.step.operation.writes and node.step.dstbuf == "i":
            return (f"out of place it overwrites its caller's input, first in {node}",)
    return ()


def _unnumbered(algorithm: Algorithm) -> tuple[str, ...]:
    for gpu in algorithm.gpus:
        for at, tb in enumerate(gpu.threadblocks):
            if tb.id != at:
                return (f"gpu {gpu.id} has no threadblock {at}: RCCL takes no gaps in their ids",)
    return ()


def _bounded(algorithm: Algorithm, where: Layout) -> None:
    """Raise Unsupported for a short text that stands for more chunks than a proof can take."""
    steps = [step.cnt for _, _, step in algorithm.steps()]
    moved = sum(max(1, count) for count in steps)
    if moved > max(_MOST_MOVED, len(steps)):
        raise Unsupported(f"its steps move {moved} chunks (cnt); at most {_MOST_MOVED} are proven")
    held = sum(gpu.s_chunks for gpu in algorithm.gpus) + where.split * sum(
        len(where.parts(gpu.id, buffer))
        for gpu in algorithm.gpus
        for buffer in (Buffer.IN, Buffer.OUT)
    )
    if held > _MOST_HELD:
        raise Unsupported(f"its gpus hold {held} chunks; at most {_MOST_HELD} are proven")


def prove(algorithm: Algorithm) -> Proof:
    """Prove an algorithm, in every placement that it declares.

    Raises ScheduleError, naming gpu, threadblock and step, for a deadlock, a race, a chunk out of
    range, a read of nothing, a share added twice and a result that is not the collective's.
    Raises Unsupported for a collective whose result is not known, and for more than can be looked
    at.
    """
    where = layout(algorithm)
    _bounded(algorithm, where)
    if not algorithm.placements():
        raise ScheduleError("inplace and outofplace are both 0: the runtime would never run it")
    graph = build(algorithm)
    notes = graph.notes + _unnumbered(algorithm)
    for in_place in algorithm.placements():
        memory = ChunkMemory(algorithm, where, in_place)
        found = accesses(graph, memory)
        check(graph, memory, found)
        run = _Run(graph, memory, found)
        run.run()
        run.check_result()
        if not in_place:
            notes += _overwrites(algorithm, graph)
    return Proof(where, graph, algorithm.placements(), notes)
