"""Rings that run beside each other: how many rings the NVLinks between some GPUs hold at once.

NCCL opens a channel per such ring, so their number times the rate of one link, in both directions, is
what the links carry. Switches need none of this: one ring through a switch uses a GPU's whole port.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Counts = Sequence[Sequence[int]]
Ring = tuple[int, ...]
#: Rings looked at and steps searched per set of GPUs; a DGX-1V has 30 rings and needs a few steps.
MAX_RINGS = 3000
MAX_STEPS = 20000


def most_rings(counts: Counts) -> int:
    """An upper bound on the rings: every ring takes two links at every GPU."""
    return min((sum(row) // 2 for row in counts), default=0)


def ring_orders(counts: Counts) -> Iterator[Ring]:
    """Yield every distinct ring (direction and start do not matter) over pairs with links."""
    size = len(counts)

    def walk(path: list[int], left: frozenset[int]) -> Iterator[Ring]:
        if not left:
            if counts[path[-1]][path[0]] and path[1] < path[-1]:
                yield tuple(path)
            return
        for after in sorted(left):
            if counts[path[-1]][after]:
                yield from walk([*path, after], left - {after})

    if size >= 3:
        yield from walk([0], frozenset(range(1, size)))


@dataclass
class _Search:
    rings: list[Ring]
    goal: int
    best: tuple[Ring, ...] = ()
    steps: int = 0

    def run(self, left: list[list[int]], taken: tuple[Ring, ...], start: int) -> None:
        """Take rings in order, with repetition, while links are left; keep the largest set."""
        self.steps += 1
        if len(taken) > len(self.best):
            self.best = taken
        for at in range(start, len(self.rings)):
            if len(self.best) >= self.goal or self.steps > MAX_STEPS:
                return
            if len(taken) + most_rings(left) <= len(self.best):
                return
            ring = self.rings[at]
            edges = list(pairwise((*ring, ring[0])))
            if all(left[a][b] for a, b in edges):
                _take(left, edges, -1)
                self.run(left, (*taken, ring), at)
                _take(left, edges, 1)


def _take(left: list[list[int]], edges: list[tuple[int, int]], change: int) -> None:
    for a, b in edges:
        left[a][b] += change
        left[b][a] += change


def disjoint_rings(counts: Counts) -> tuple[Ring, ...]:
    """Return the largest set of rings that share no link; counts[i][j] links between i and j.

    Exact where the search ends within MAX_STEPS or meets the bound of ``most_rings``; else a set
    that exists, perhaps not the largest. Needs three GPUs or more; empty where no ring exists.
    """
    rings = []
    for ring in ring_orders(counts):
        rings.append(ring)
        if len(rings) == MAX_RINGS:
            break
    search = _Search(rings, most_rings(counts))
    search.run([list(row) for row in counts], (), 0)
    return search.best
