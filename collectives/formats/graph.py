"""The order of an MSCCL algorithm's steps, as one graph over all gpus.

A node is one chunk of one step: a step of ``cnt`` chunks moves them one after the other, and its
messages are matched chunk by chunk. Edges: threadblocks are strictly sequential; a step waits for
what it depends on; the k-th receive from a gpu on a channel takes the k-th send to it. Nothing in
a file depends on data or time, so this graph is all that there is to know about its order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from busbar.errors import ScheduleError
from collectives.formats.msccl import Algorithm, Gpu, ThreadBlock, ThreadblockStep

# Sends that a connection holds before its sender waits: NCCL's 8 buffer steps (NCCL_STEPS), of
# which a send takes one, or with Simple half of them (MSCCL_CHUNKSTEPS), in the runtime as it is
# built.
_FIFO = {"LL": 8, "LL128": 8, "Simple": 2}


class Transfer(NamedTuple):
    """Chunk ``piece`` of a step, in file order the ``number``-th of its threadblock.

    ``send`` and ``chan`` are the threadblock's: what it sends goes there.
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
    """Nodes, what each waits for, an order that respects it, and for each receive its send.

    ``column[v]`` is the threadblock of a node, numbered through all gpus, ``row[v]`` its place in
    there: together they are a position in a vector clock. ``notes``: what may go wrong beside.
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
        # For each (gpu, tb) the counted steps that signal, and the node after which they do.
        self.signals: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        # Threadblocks with a nop that has no dependency, where steps are not counted by place.
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
            # How much a connection holds is the runtime's affair, not the file's.
            self.graph.notes = (f"where a connection holds only {depth} sends: {error}",)
        return self.graph

    def _threadblock(self, gpu: Gpu, tb: ThreadBlock, column: int) -> None:
        """Nodes of a threadblock. ``count`` is the step that the runtime signals.

        The runtime drops nops and hangs their dependencies on the step that follows, and it counts
        a dependency or a step each; so does ``count``, which is the place in the file unless a nop
        has no dependency.
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
        found = ends.setdefault(key, [])
        found += nodes
        first, last = self.graph.nodes[found[0]], self.graph.nodes[found[-1]]
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
        """The predecessors of each node if a connection buffers the chunks of ``depth`` steps."""
        before = [list(b) for b in self.graph.before]
        for key, sends in self.sends.items():
            nodes = self.graph.nodes
            starts = [i for i, v in enumerate(sends) if nodes[v].piece == 0]
            ends = [*(i - 1 for i in starts[1:]), len(sends) - 1]
            for start, end in zip(starts[depth:], ends, strict=False):
                before[sends[start]].append(self.receives[key][end])
        return before

    def _sorted(self, before: list[list[int]]) -> list[int]:
        """An order that respects ``before``; a receive follows its send as soon as it may."""
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
        """Steps each of which waits for the next, and the last for the first, as a sentence."""
        first = path.index(min(path))
        circle = [str(self.graph.nodes[u]) for u in path[first:] + path[:first]]
        # A threadblock's own order is not worth a word.
        told = [c for c, after in zip(circle, circle[1:] + circle[:1], strict=True) if c != after]
        head = told[0] if told else circle[0]
        rest = ", which waits for ".join([*told[1:4], *(["…"] if len(told) > 5 else []), head])
        return f"{head}: deadlock: it waits for {rest}"


def build(algorithm: Algorithm) -> OrderGraph:
    """The graph of an algorithm, which is proven to be free of deadlock.

    Raises ScheduleError, naming gpu, threadblock and step, for a dependency on what does not
    exist or never signals, a message without its other end, and steps that wait in a circle.
    """
    return _Builder(algorithm).build()
