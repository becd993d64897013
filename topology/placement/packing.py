"""Ring packing: how many edge-disjoint rings the NVLinks between some GPUs hold.

NCCL opens a channel for each such ring. So the links carry the number of rings times the rate of
one link, in both directions. Switches do not need this: one ring through a switch uses a GPU's
whole port.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Counts = tuple[tuple[int, ...], ...]
Ring = tuple[int, ...]
#: Rings looked at per set of GPUs; a DGX-1V has 30.
MAX_RINGS = 3000


def most_rings(counts: Sequence[Sequence[int]]) -> int:
    """An upper bound on the rings: every ring takes two links at every GPU."""
    return min((sum(row) // 2 for row in counts), default=0)


def ring_orders(counts: Sequence[Sequence[int]]) -> Iterator[Ring]:
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
    coming: Iterator[Ring]
    goal: int
    rings: list[Ring] = field(default_factory=list)
    best: tuple[Ring, ...] = ()
    steps: int = 0

    def ring(self, at: int) -> Ring | None:
        """The ring of that number, made when first asked for; None past the last."""
        while len(self.rings) <= at < MAX_RINGS:
            ring = next(self.coming, None)
            if ring is None:
                return None
            self.rings.append(ring)
        return self.rings[at] if at < len(self.rings) else None

    def run(self, left: list[list[int]], taken: tuple[Ring, ...], start: int) -> None:
        """Take rings in order, with repetition, while links are left; keep the largest set."""
        if len(taken) > len(self.best):
            self.best = taken
        at = start
        while (ring := self.ring(at)) is not None:
            self.steps += 1
            if len(self.best) >= self.goal or self.steps > 10 * MAX_RINGS:
                return
            if len(taken) + most_rings(left) <= len(self.best):
                return
            edges = list(pairwise((*ring, ring[0])))
            if all(left[a][b] for a, b in edges):
                _take(left, edges, -1)
                self.run(left, (*taken, ring), at)
                _take(left, edges, 1)
            at += 1


def _take(left: list[list[int]], edges: list[tuple[int, int]], change: int) -> None:
    for a, b in edges:
        left[a][b] += change
        left[b][a] += change


def disjoint_rings(counts: Counts, thorough: bool = True) -> tuple[Ring, ...]:
    """Return the largest set of rings that share no link; counts[i][j] links between i and j.

    First greedily: the first ring of what is left, again and again. Where that misses the bound of
    ``most_rings`` and ``thorough`` is asked for, all sets are searched; exact where there are fewer
    than MAX_RINGS rings and the search ends within ten times as many steps, or meets the bound.
    Empty for fewer than three GPUs and where no ring exists.
    """
    left = [list(row) for row in counts]
    greedy: list[Ring] = []
    while (ring := next(ring_orders(left), None)) is not None:
        greedy.append(ring)
        _take(left, list(pairwise((*ring, ring[0]))), -1)
    goal = most_rings(counts)
    if len(greedy) == goal or not (greedy and thorough):
        return tuple(greedy)
    search = _Search(ring_orders(counts), goal, best=tuple(greedy))
    search.run([list(row) for row in counts], (), 0)
    return search.best
