"""Prove that an MSCCL algorithm gives its collective's result under every timing of its gpus.

1. The order of all steps is one graph over all gpus (`OrderGraph`). A node is one chunk of one
   step: a step of ``cnt`` chunks moves them one after the other, and its messages are matched
   chunk by chunk. Threadblocks are strictly sequential; a step waits for its dependency; the k-th
   receive from a gpu on a channel receives the k-th send. Nothing in a file depends on data or
   time.
2. No races (`check_races`): accesses of a chunk conflict unless both read, and the graph must order
   every conflicting pair. The vector clock of a node states how many nodes of each threadblock have
   certainly run before it: the maximum of the clocks of its predecessors (Mattern 1989). Only
   accesses on one gpu can conflict, so clocks are kept for one block of gpus at a time, which
   limits memory.
3. Without deadlock and races every order that the graph allows gives the same values, so one order
   is executed (`prove`). A value is a vector chunk and the set of ranks whose shares are in it. No
   share may be in it twice, so an addition of two sets with a common rank is an error.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import ScheduleError, Unsupported
from collectives.formats.msccl import BUFFERS, Algorithm, Gpu, ThreadBlock, ThreadblockStep
from collectives.schedule.catalogue import spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.spec import Collective

# The number of sends that a connection buffers before its sender waits: NCCL has 8 buffer steps
# (NCCL_STEPS). A send takes one of them, or with Simple the runtime's default (MSCCL_CHUNKSTEPS),
# half of them.
_FIFO = {"LL": 8, "LL128": 8, "Simple": 2}


class Transfer(NamedTuple):
    """Chunk ``piece`` of a step, which is the ``number``-th of its threadblock in the file.

    ``send`` and ``chan``: the peer and the channel to which the threadblock sends.
    """

    gpu: int
    tb: int
    number: int
    piece: int
    step: ThreadblockStep
    send: int
    chan: int

    def __str__(self) -> str:
        return f"gpu {self.gpu}, threadblock {self.tb}, step {self.number} ({self.step.type})"


@dataclass
class OrderGraph:
    """The transfers of an algorithm file, as nodes, and which must precede which.

    ``before``: the predecessors of each node. ``order``: one order that respects them. ``sender``:
    the send that each receive gets. ``column[v]`` is a node's threadblock, numbered through all
    gpus, and ``row[v]`` its place in the threadblock: together they are a position in a vector
    clock. ``notes``: warnings.
    """

    nodes: list[Transfer] = field(default_factory=list)
    before: list[list[int]] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    sender: dict[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class _Wait(NamedTuple):
    """Node ``node`` waits until threadblock ``tb`` of its gpu has signalled step ``step``."""

    node: int
    tb: int
    step: int


_Ends = dict[tuple[int, int, int], list[int]]


class _Builder:
    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.graph = OrderGraph()
        self.waits: list[_Wait] = []
        # For each (gpu, tb) the counts of the steps that signal, and the nodes after which they do.
        self.signals: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        # Threadblocks with a nop without a dependency: their steps' counts are not their places.
        self.uncounted: set[tuple[int, int]] = set()
        # Nodes by (source, destination, channel), in the order of their threadblock.
        self.sends: _Ends = {}
        self.receives: _Ends = {}

    def build(self) -> OrderGraph:
        column = 0
        for gpu in self.algorithm.gpus:
            for tb in gpu.threadblocks:
                self._threadblock(gpu, tb, column)
                column += 1
        for wait in self.waits:
            self._wait(wait)
        self._match()
        self.graph.order = self._sorted(self.graph.before)
        depth = _FIFO[self.algorithm.proto]
        try:
            self._sorted(self._with_room(depth))
        except ScheduleError as error:
            # The buffer of a connection depends on the runtime, so this is only a warning.
            self.graph.notes = (f"where a connection holds only {depth} sends: {error}",)
        return self.graph

    def _threadblock(self, gpu: Gpu, tb: ThreadBlock, column: int) -> None:
        """Add the nodes of a threadblock. ``count``: the runtime's number of a step.

        The runtime drops nops and moves their dependencies to the next step. It counts each
        dependency or step. ``count`` does the same; it is the step's place in the file unless a
        nop has no dependency.
        """
        counts: list[int] = []
        signals: list[int] = []
        held: list[_Wait] = []
        count, last, row = 0, -1, 0
        for number, step in enumerate(tb.steps):
            waits = step.depid >= 0
            first = len(self.graph.nodes)
            if waits:
                held.append(_Wait(first, step.depid, step.deps))
            if step.type == "nop":
                if not waits:
                    self.uncounted.add((gpu.id, tb.id))
                continue
            if held and not waits:
                raise ScheduleError(
                    f"gpu {gpu.id}, threadblock {tb.id}, step {number} ({step.type}): it follows a"
                    " nop that waits and must have a dependency itself, or the runtime refuses it"
                )
            count += max(1, len(held)) - 1
            self.waits += held
            held = []
            for piece in range(max(1, step.cnt)):
                v = len(self.graph.nodes)
                self.graph.nodes.append(
                    Transfer(gpu.id, tb.id, number, piece, step, tb.send, tb.chan)
                )
                self.graph.before.append([last] if last >= 0 else [])
                self.graph.column.append(column)
                self.graph.row.append(row)
                last, row = v, row + 1
            if step.cnt:
                self._ends(gpu.id, tb, step, range(first, last + 1))
            if step.hasdep:
                counts.append(count)
                signals.append(last)
            count += 1
        self.signals[gpu.id, tb.id] = counts, signals

    def _ends(self, gpu: int, tb: ThreadBlock, step: ThreadblockStep, nodes: Iterable[int]) -> None:
        if step.operation.sends:
            self._add(self.sends, (gpu, tb.send, tb.chan), nodes, "sends to", tb.send)
        if step.operation.receives:
            self._add(self.receives, (tb.recv, gpu, tb.chan), nodes, "receives from", tb.recv)

    def _add(
        self, ends: _Ends, key: tuple[int, int, int], nodes: Iterable[int], what: str, peer: int
    ) -> None:
        known = ends.setdefault(key, [])
        known += nodes
        first, last = self.graph.nodes[known[0]], self.graph.nodes[known[-1]]
        if first.tb != last.tb:
            raise ScheduleError(
                f"{last}: threadblock {first.tb} {what} gpu {peer} on channel {key[2]} too;"
                " a connection belongs to one threadblock"
            )

    def _wait(self, wait: _Wait) -> None:
        node = self.graph.nodes[wait.node]
        where = f"{node}: it waits for threadblock {wait.tb}, step {wait.step}"
        if (node.gpu, wait.tb) not in self.signals:
            raise ScheduleError(f"{where}, but the gpu has no such threadblock")
        counts, signals = self.signals[node.gpu, wait.tb]
        at = bisect_left(counts, wait.step)
        if at == len(counts):
            why = "neither that step nor a later one has hasdep=1"
            if (node.gpu, wait.tb) in self.uncounted:
                why += " as the runtime counts them: a nop there that waits for nothing is no step"
            raise ScheduleError(f"{where}: deadlock: {why}")
        self.graph.before[wait.node].append(signals[at])

    def _match(self) -> None:
        nodes = self.graph.nodes
        for key in sorted({*self.sends, *self.receives}):
            sends, receives = self.sends.get(key, []), self.receives.get(key, [])
            link = f"from gpu {key[0]} to gpu {key[1]} on channel {key[2]}"
            for a, b in zip(sends, receives, strict=False):
                one, other = nodes[a], nodes[b]
                if one.piece != other.piece or one.step.cnt != other.step.cnt:
                    raise ScheduleError(
                        f"{other}: it receives cnt={other.step.cnt} chunks {link}, where {one}"
                        f" sends cnt={one.step.cnt}"
                    )
                self.graph.sender[b] = a
                self.graph.before[b].append(a)
            if len(sends) > len(receives):
                raise ScheduleError(f"{nodes[sends[len(receives)]]}: nobody receives it {link}")
            if len(receives) > len(sends):
                raise ScheduleError(f"{nodes[receives[len(sends)]]}: deadlock: nobody sends {link}")

    def _with_room(self, depth: int) -> list[list[int]]:
        """The nodes that must precede each node if a connection buffers ``depth`` sends.

        A send then waits until the send ``depth`` steps before it on its connection has been
        received. A cycle in the result is a deadlock.
        """
        before = [list(b) for b in self.graph.before]
        for key, sends in self.sends.items():
            nodes = self.graph.nodes
            starts = [i for i, v in enumerate(sends) if nodes[v].piece == 0]
            ends = [*(i - 1 for i in starts[1:]), len(sends) - 1]
            for start, end in zip(starts[depth:], ends, strict=False):
                before[sends[start]].append(self.receives[key][end])
        return before

    def _sorted(self, before: list[list[int]]) -> list[int]:
        """An order that respects ``before``. A receive follows its send as early as possible."""
        sorter = TopologicalSorter(dict(enumerate(before)))
        try:
            sorter.prepare()
        except CycleError as error:
            raise ScheduleError(self._cycle(error.args[1][:-1][::-1])) from None
        ready = sorted(sorter.get_ready(), reverse=True)
        order: list[int] = []
        while ready:
            order.append(ready.pop())
            sorter.done(order[-1])
            ready += sorter.get_ready()
        return order

    def _cycle(self, path: list[int]) -> str:
        """The message about a deadlock: a cycle of steps, each of which waits for the next."""
        first = path.index(min(path))
        circle = [str(self.graph.nodes[u]) for u in path[first:] + path[:first]]
        # Consecutive nodes of one step are named once.
        names = [c for c, after in zip(circle, circle[1:] + circle[:1], strict=True) if c != after]
        head = names[0] if names else circle[0]
        rest = ", which waits for ".join([*names[1:4], *(["…"] if len(names) > 5 else []), head])
        return f"{head}: deadlock: it waits for {rest}"


def build_graph(algorithm: Algorithm) -> OrderGraph:
    """The graph of an algorithm, which is proven to have no deadlock.

    Raises ScheduleError, naming gpu, threadblock and step, for a dependency on a step that does not
    exist or never signals, a send without a receive or the reverse, and a cycle of waiting steps.
    """
    return _Builder(algorithm).build()


#: The format's collectives. Files may also write reduce_scatter as one word.
COLLECTIVES = (
    "allgather", "allreduce", "alltoall", "broadcast", "gather", "reduce", "reduce_scatter",
    "scatter",
)  # fmt: skip
# Collectives for which nchunksperloop counts the chunks of one rank's buffer, not of the vector.
_PER_RANK = ("alltoall", "gather", "scatter")


def collective_of(name: str) -> Collective:
    """The collective that a file names. Raises Unsupported if its result is not known."""
    known = "reduce_scatter" if name == "reducescatter" else name
    if known not in COLLECTIVES:
        names = ", ".join(COLLECTIVES)
        raise Unsupported(f"coll={name[:40]!r} says nothing of the result; known are: {names}")
    return spec(known)


def chunk_layout(algorithm: Algorithm) -> Layout:
    """The layout of an algorithm's collective.

    Raises Unsupported for a collective whose result is not known (custom), ScheduleError if the
    ranks' parts are no whole number of chunks.
    """
    what = collective_of(algorithm.coll)
    scale = algorithm.ngpus if what.name in _PER_RANK else 1
    return Layout(what, algorithm.ngpus, algorithm.nchunksperloop * scale, algorithm.root)


def nchunksperloop(where: Layout) -> int:
    """The ``nchunksperloop`` of a layout: the inverse of `chunk_layout`."""
    return where.nchunks // (where.nranks if where.spec.name in _PER_RANK else 1)


class ChunkMemory:
    """A numbered slot for each chunk of each gpu's buffers; in place ``i`` and ``o`` share slots.

    ``declared``: the number of chunks of each gpu's buffers, as the file states it.
    """

    def __init__(
        self, declared: Sequence[Mapping[str, int]], where: Layout, in_place: bool
    ) -> None:
        self.declared = declared
        self.layout = where
        self.in_place = in_place
        self.at: dict[tuple[int, str], list[int]] = {}
        self.size = 0
        for gpu, chunks in enumerate(declared):
            out = self._fresh(len(self.holds(gpu, "o")))
            position = dict(zip(self.holds(gpu, "o"), out, strict=True)) if in_place else {}
            self.at[gpu, "o"] = out
            self.at[gpu, "i"] = [
                position[c] if c in position else self._fresh(1)[0] for c in self.holds(gpu, "i")
            ]
            self.at[gpu, "s"] = self._fresh(chunks["s"])

    def _fresh(self, n: int) -> list[int]:
        self.size += n
        return list(range(self.size - n, self.size))

    def holds(self, gpu: int, buffer: str) -> list[int]:
        """The vector chunks that the slots of a gpu's ``i`` or ``o`` are for, in order.

        In place a rooted collective has one buffer on every gpu, even if a gpu does not use it.
        """
        which = Buffer.IN if buffer == "i" else Buffer.OUT
        chunks = self.layout.chunks(gpu, which).tolist()
        root = self.layout.root
        if self.in_place and not chunks and self.layout.spec.rooted:
            both = [self.layout.chunks(root, b).tolist() for b in (Buffer.IN, Buffer.OUT)]
            return both[0] if both[0] == both[1] else []
        return list(chunks)

    def slot(self, node: Transfer, buffer: str, offset: int) -> int:
        """The slot of a chunk. Raises ScheduleError, naming the step, if it is out of range."""
        room = self.at[node.gpu, buffer]
        declared = self.declared[node.gpu][buffer]
        if not 0 <= offset < min(len(room), declared):
            why = (
                f"the gpu declares {declared} {buffer}_chunks"
                if declared < len(room)
                else f"{self.layout.spec.name} leaves it {len(room)} chunks"
            )
            raise ScheduleError(f"{node}: {buffer}[{offset}] is out of range; {why}")
        return room[offset]

    def name(self, slot: int, gpu: int) -> str:
        """The name of a slot, such as ``o[3]``."""
        return next(
            f"{b}[{self.at[gpu, b].index(slot)}]" for b in BUFFERS if slot in self.at[gpu, b]
        )


_BLOCK_CELLS = 2**25


class Access(NamedTuple):
    """The slots that a node reads and writes; -1 for none."""

    read: int
    write: int


def list_accesses(graph: OrderGraph, memory: ChunkMemory) -> list[Access]:
    """The accesses of each node. Raises ScheduleError if a slot does not exist."""
    accesses = []
    for node in graph.nodes:
        step, read, write = node.step, -1, -1
        if step.cnt and step.operation.reads:
            read = memory.slot(node, step.srcbuf, step.srcoff + node.piece)
        if step.cnt and step.operation.writes:
            write = memory.slot(node, step.dstbuf, step.dstoff + node.piece)
        accesses.append(Access(read, write))
    _check_overlaps(graph, accesses)
    return accesses


def _check_overlaps(graph: OrderGraph, accesses: list[Access]) -> None:
    """Raise ScheduleError if a step, whose chunks may move at once, reads chunks that it writes."""
    v = 0
    while v < len(accesses):
        count = max(1, graph.nodes[v].step.cnt)
        own = accesses[v : v + count]
        if count > 1 and own[0].read != own[0].write:
            written = {a.write for a in own if a.write >= 0}
            if any(a.read in written for a in own):
                raise ScheduleError(f"{graph.nodes[v]}: what it reads and what it writes overlap")
        v += count


def _blocks(graph: OrderGraph, ngpus: int) -> Iterator[tuple[range, int, int]]:
    """Split gpus into blocks; yields a block's gpus and the range of its threadblocks' columns."""
    ends = [0] * (ngpus + 1)
    for v, node in enumerate(graph.nodes):
        ends[node.gpu + 1] = max(ends[node.gpu + 1], graph.column[v] + 1)
    edges = np.maximum.accumulate(ends).tolist()
    width = max(1, _BLOCK_CELLS // max(1, len(graph.nodes)))
    first = 0
    while first < ngpus:
        last = first + 1
        while last < ngpus and edges[last + 1] - edges[first] <= width:
            last += 1
        yield range(first, last), edges[first], edges[last]
        first = last


def _clocks(graph: OrderGraph, low: int, high: int) -> NDArray[np.int32]:
    """For each node, how many nodes of threadblocks ``low`` … ``high`` - 1 have certainly run."""
    clocks = np.zeros((len(graph.nodes), high - low), np.int32)
    for v in graph.order:
        clock = clocks[v]
        for u in graph.before[v]:
            np.maximum(clock, clocks[u], out=clock)
        if low <= graph.column[v] < high:
            clock[graph.column[v] - low] = graph.row[v] + 1
    return clocks


def check_races(graph: OrderGraph, memory: ChunkMemory, accesses: list[Access]) -> None:
    """Raise ScheduleError, naming both steps and the chunk, if two accesses race.

    A write must come after the slot's last write and the reads since; a read after the last write.
    """

    def check(u: int, v: int, slot: int) -> None:
        """Raise if the clocks do not show that ``u`` has run before ``v``."""
        if clocks[v, graph.column[u] - low] > graph.row[u]:
            return
        one, other = graph.nodes[u], graph.nodes[v]
        act = "writes" if accesses[v].write == slot else "reads"
        does = "write" if accesses[u].write == slot else "read"
        raise ScheduleError(
            f"{other}: race: it {act} {memory.name(slot, other.gpu)}, which threadblock {one.tb},"
            f" step {one.number} ({one.step.type}) may {does} at the same time"
        )

    written: dict[int, int] = {}
    reading: dict[int, list[int]] = {}
    for gpus, low, high in _blocks(graph, len(memory.declared)):
        clocks = _clocks(graph, low, high)
        for v in graph.order:
            if graph.nodes[v].gpu not in gpus:
                continue
            read, write = accesses[v]
            if read >= 0:
                if read in written:
                    check(written[read], v, read)
                reading.setdefault(read, []).append(v)
            if write >= 0:
                for u in reading.pop(write, ()):
                    if u != v:
                        check(u, v, write)
                if write in written:
                    check(written[write], v, write)
                written[write] = v


class Value(NamedTuple):
    """A vector chunk, and the ranks whose shares are in it: bit r is set for rank r."""

    chunk: int
    ranks: int


def initial_values(memory: ChunkMemory) -> Iterator[tuple[int, Value]]:
    """The slots that have a value at the beginning (each rank's input), with these values."""
    for gpu in range(memory.layout.nranks):
        own = set(memory.layout.chunks(gpu, Buffer.IN).tolist())
        for slot, chunk in zip(memory.at[gpu, "i"], memory.holds(gpu, "i"), strict=True):
            if chunk in own:
                yield slot, Value(chunk, 1 << gpu)


def expected_values(memory: ChunkMemory) -> Iterator[tuple[int, int, Value]]:
    """For each output slot its gpu, the slot, and the value that it must have at the end."""
    where = memory.layout
    holders = [sum(1 << r for r in ranks) for ranks in where.spec.holders(where.nranks, where.root)]
    for gpu in range(where.nranks):
        chunks = where.chunks(gpu, Buffer.OUT).tolist()
        for slot, chunk in zip(memory.at[gpu, "o"], chunks, strict=False):
            yield gpu, slot, Value(chunk, holders[chunk // where.split])


def add_values(node: object, one: Value, other: Value) -> Value:
    """The sum of two values. Raises ScheduleError, naming the node, if they cannot be added."""
    if one.chunk != other.chunk:
        raise ScheduleError(f"{node}: it adds chunk {one.chunk} to chunk {other.chunk}")
    twice = one.ranks & other.ranks
    if twice:
        share = f"rank {first_rank(twice)}'s share of chunk {one.chunk}"
        raise ScheduleError(f"{node}: it adds {share} a second time")
    return Value(one.chunk, one.ranks | other.ranks)


def first_rank(ranks: int) -> int:
    """The lowest rank in a bit set of ranks."""
    return (ranks & -ranks).bit_length() - 1


# The most chunks that steps move, unless there are more steps, and the most chunks of all buffers.
_MOST_MOVED = 1 << 18
_MOST_HELD = 1 << 22


@dataclass(frozen=True)
class Proof:
    """The result of a proof: the collective's layout, the graph, and the proven placements.

    ``notes``: sentences on properties that are correct but may be unexpected.
    """

    layout: Layout
    graph: OrderGraph
    placements: tuple[bool, ...]
    notes: tuple[str, ...] = ()


class _Run:
    """Executes the graph in one order on symbolic values."""

    def __init__(self, graph: OrderGraph, memory: ChunkMemory, accesses: list[Access]) -> None:
        self.graph = graph
        self.memory = memory
        self.accesses = accesses
        self.holds: list[Value | None] = [None] * memory.size
        self.writer = [-1] * memory.size
        # Values that were sent and not yet received, by the sending node.
        self.flying: dict[int, Value] = {}
        for slot, value in initial_values(memory):
            self.holds[slot] = value

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
        own = self._read(node, self.accesses[v].read) if does.reads else None
        value = add_values(node, message, own) if message and own else (message or own)
        assert value is not None  # every type that moves chunks receives or reads
        if does.adds:
            value = add_values(node, value, self._read(node, self.accesses[v].write))
        if does.sends:
            self.flying[v] = value
        if does.writes:
            self.holds[self.accesses[v].write] = value
            self.writer[self.accesses[v].write] = v

    def _read(self, node: Transfer, slot: int) -> Value:
        value = self.holds[slot]
        if value is None:
            name = self.memory.name(slot, node.gpu)
            raise ScheduleError(f"{node}: it reads {name}, where nothing has been written")
        return value

    def check_result(self) -> None:
        """Raise ScheduleError unless every output chunk has each rank's share once."""
        for gpu, slot, want in expected_values(self.memory):
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
        who = f"lacks rank {first_rank(lack)}'s share" if lack else "has a share that is not its"
        return f"{head} is last written here, and {who} of chunk {want.chunk}"


def _overwrites(graph: OrderGraph) -> tuple[str, ...]:
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
    """Raise Unsupported if an algorithm has too many chunks to prove, even in a short file."""
    steps = [step.cnt for _, _, step in algorithm.steps()]
    moved = sum(max(1, count) for count in steps)
    if moved > max(_MOST_MOVED, len(steps)):
        raise Unsupported(f"its steps move {moved} chunks (cnt); at most {_MOST_MOVED} are proven")
    held = sum(gpu.chunks["s"] for gpu in algorithm.gpus) + where.split * sum(
        len(where.parts(gpu.id, buffer))
        for gpu in algorithm.gpus
        for buffer in (Buffer.IN, Buffer.OUT)
    )
    if held > _MOST_HELD:
        raise Unsupported(f"its gpus hold {held} chunks; at most {_MOST_HELD} are proven")


def prove(algorithm: Algorithm) -> Proof:
    """Prove an algorithm in every placement that it declares.

    Raises ScheduleError, naming gpu, threadblock and step, for a deadlock, a race, a chunk out of
    range, a read before any write, a share added twice and a result that is not the collective's.
    Raises Unsupported for a collective whose result is not known, and for too many chunks.
    """
    where = chunk_layout(algorithm)
    _bounded(algorithm, where)
    if not algorithm.placements():
        raise ScheduleError("inplace and outofplace are both 0: the runtime would never run it")
    graph = build_graph(algorithm)
    notes = graph.notes + _unnumbered(algorithm)
    for in_place in algorithm.placements():
        memory = ChunkMemory([gpu.chunks for gpu in algorithm.gpus], where, in_place)
        accesses = list_accesses(graph, memory)
        check_races(graph, memory, accesses)
        run = _Run(graph, memory, accesses)
        run.run()
        run.check_result()
        if not in_place:
            notes += _overwrites(graph)
    return Proof(where, graph, algorithm.placements(), notes)
