"""Find races by vector clocks: steps that touch one chunk and that nothing orders.

The clock of a node says how far every threadblock has certainly come when it runs: the greatest of
the clocks of what it waits for (Mattern 1989). Accesses of a chunk conflict unless both read; every
conflicting pair must be ordered by the graph. Clocks are kept for one block of gpus at a time,
since only accesses on one gpu can conflict, so that memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import ScheduleError
from collectives.formats.graph import OrderGraph
from collectives.formats.memory import ChunkMemory

_BLOCK_CELLS = 2**25


class Access(NamedTuple):
    """The slots that a node reads and writes, -1 for none."""

    read: int
    write: int


def accesses(graph: OrderGraph, memory: ChunkMemory) -> list[Access]:
    """Every node's accesses. Raises ScheduleError for a slot that does not exist."""
    found = []
    for node in graph.nodes:
        step, read, write = node.step, -1, -1
        if step.cnt and step.operation.reads:
            read = memory.slot(node, step.srcbuf, step.srcoff + node.piece)
        if step.cnt and step.operation.writes:
            write = memory.slot(node, step.dstbuf, step.dstoff + node.piece)
        found.append(Access(read, write))
    _check_overlaps(graph, found)
    return found


def _check_overlaps(graph: OrderGraph, found: list[Access]) -> None:
    """Within a step chunks move at once, so it may not read one that it writes elsewhere."""
    v = 0
    while v < len(found):
        count = max(1, graph.nodes[v].step.cnt)
        mine = found[v : v + count]
        if count > 1 and mine[0].read != mine[0].write:
            written = {a.write for a in mine if a.write >= 0}
            if any(a.read in written for a in mine):
                raise ScheduleError(f"{graph.nodes[v]}: what it reads and what it writes overlap")
        v += count


def _blocks(graph: OrderGraph, ngpus: int) -> Iterator[tuple[range, int, int]]:
    """Runs of gpus with the columns of their threadblocks, few enough to keep clocks for."""
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
    """For every node: nodes of threadblocks ``low`` … ``high`` that have run, itself included."""
    clocks = np.zeros((len(graph.nodes), high - low), np.int32)
    for v in graph.order:
        clock = clocks[v]
        for u in graph.before[v]:
            np.maximum(clock, clocks[u], out=clock)
        if low <= graph.column[v] < high:
            clock[graph.column[v] - low] = graph.row[v] + 1
    return clocks


def check(graph: OrderGraph, memory: ChunkMemory, found: list[Access]) -> None:
    """Raises ScheduleError, naming both steps and the chunk, for two that race."""
    for gpus, low, high in _blocks(graph, memory.algorithm.ngpus):
        _check_block(graph, memory, found, gpus, low, _clocks(graph, low, high))


def _check_block(
    graph: OrderGraph,
    memory: ChunkMemory,
    found: list[Access],
    gpus: range,
    low: int,
    clocks: NDArray[np.int32],
) -> None:
    """In graph order: the last write of a slot, and the reads since it, precede a write."""
    written: dict[int, int] = {}
    reading: dict[int, list[int]] = {}

    def ordered(u: int, v: int) -> bool:
        return bool(clocks[v, graph.column[u] - low] > graph.row[u])

    def complain(u: int, v: int, slot: int) -> None:
        one, other = graph.nodes[u], graph.nodes[v]
        act = "writes" if found[v].write == slot else "reads"
        does = "write" if found[u].write == slot else "read"
        raise ScheduleError(
            f"{other}: race: it {act} {memory.name(slot, other.gpu)}, which threadblock {one.tb},"
            f" step {one.number} ({one.step.type}) may {does} at the same time"
        )

    for v in graph.order:
        if graph.nodes[v].gpu not in gpus:
            continue
        read, write = found[v]
        if read >= 0:
            if read in written and not ordered(written[read], v):
                complain(written[read], v, read)
            reading.setdefault(read, []).append(v)
        if write >= 0:
            for u in reading.pop(write, ()):
                if u != v and not ordered(u, v):
                    complain(u, v, write)
            if write in written and not ordered(written[write], v):
                complain(written[write], v, write)
            written[write] = v
