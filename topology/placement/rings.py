"""Exact searches over all subsets of up to 16 devices at once. Works on integers, not devices.

Weights turn "fewest hops of the worst class, then fewest of the second worst, …" into a sum: a hop
of class c weighs base**c, where base exceeds the number of hops, so sums compare like the counts
from the worst class down. The narrowest hop is then as wide as possible, and no wide link is left
for a narrow one without need. On a tree of switches such a ring crosses every link once in each
direction.

NCCL opens a channel for each such ring. So the links carry the number of rings times the rate of
one link, in both directions. Switches do not need this: one ring through a switch uses a GPU's
whole port.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from topology.model.topology import Kind
from topology.placement.routes import DirectedLinks, Flow, GpuRoutes, ring_flows

EXACT_LIMIT = 16
Masks = npt.NDArray[np.int64]
_FAR = np.int64(1) << 62


def weights(ranks: Sequence[Sequence[int]], hops: int) -> Masks:
    """Weights of class ranks as int64, shape (n, n), for sums of at most ``hops`` entries.

    If 62 bits cannot separate the classes (15 classes for rings of 16), the best ones are merged.
    """
    base = hops + 1
    fit = 1
    while base ** (fit + 1) < 1 << 61:
        fit += 1
    table = np.array(ranks, dtype=np.int64)
    spare = max(0, int(table.max(initial=0)) + 1 - fit)
    powers: Masks = np.power(np.int64(base), np.maximum(table - spare, 0))
    return powers


def by_size(n: int, k: int) -> list[Masks]:
    """The bit masks of n devices by number of members, 0 to k; each list ascending."""
    masks = np.arange(1 << n, dtype=np.int64)
    sizes = np.zeros(1 << n, dtype=np.int64)
    for bit in range(n):
        sizes += masks >> bit & 1
    return [masks[sizes == size] for size in range(k + 1)]


def rings(weight: Masks, k: int) -> tuple[Masks, Masks, npt.NDArray[np.int8]]:
    """Find the lightest ring through every subset of k of the n devices (Held and Karp, 1962).

    State (subset, last): the lightest path from the subset's lowest member through all of it to
    last. All subsets of one size are extended together; 2**n x n states, n <= 16, k >= 2. Returns
    masks (m,), weights (m,) and orders (m, k) from the lowest member on. Weights: symmetric, > 0.
    """
    n = len(weight)
    layers = by_size(n, k)
    low = _lowest(n)
    path = np.full((1 << n, n), _FAR, dtype=np.int64)
    back = np.zeros((1 << n, n), dtype=np.int8)
    single = layers[1]
    path[single, low[single]] = 0
    for layer in layers[2:]:
        for last in range(n):
            masks = layer[(layer >> last & 1 == 1) & (low[layer] != last)]
            ways = path[masks ^ (1 << last)] + weight[:, last]
            best = ways.argmin(axis=1)
            path[masks, last] = np.minimum(ways[np.arange(len(masks)), best], _FAR)
            back[masks, last] = best
    masks = layers[k]
    closed = path[masks] + weight[:, low[masks]].T
    last_members = closed.argmin(axis=1)
    total = closed[np.arange(len(masks)), last_members]
    return masks, total, _trace(masks, last_members, back, k)


def _lowest(n: int) -> Masks:
    low = np.zeros(1 << n, dtype=np.int64)
    for bit in reversed(range(n)):
        low[np.arange(1 << n) >> bit & 1 == 1] = bit
    return low


def _trace(masks: Masks, last: Masks, back: npt.NDArray[np.int8], k: int) -> npt.NDArray[np.int8]:
    orders = np.zeros((len(masks), k), dtype=np.int8)
    here, left = last.astype(np.int64), masks.copy()
    for place in reversed(range(k)):
        orders[:, place] = here
        before = back[left, here].astype(np.int64)
        left ^= np.int64(1) << here
        here = before
    # Of a ring's two directions, take the one whose second member is the lower.
    turned = orders[:, 1] > orders[:, -1]
    orders[turned, 1:] = orders[turned, :0:-1]
    return orders


def count_rings(linked: npt.NDArray[np.bool_], k: int) -> tuple[Masks, Masks]:
    """Count, for every subset of k >= 3 devices, the distinct rings over linked pairs only.

    Rings that differ only in start or direction count as one. Returns masks and counts, (m,).
    """
    n = len(linked)
    layers, low = by_size(n, k), _lowest(n)
    ways = np.zeros((1 << n, n), dtype=np.int64)
    ways[layers[1], low[layers[1]]] = 1
    for layer in layers[2:]:
        for last in range(n):
            masks = layer[(layer >> last & 1 == 1) & (low[layer] != last)]
            ways[masks, last] = ways[masks ^ (1 << last)] @ linked[:, last].astype(np.int64)
    masks = layers[k]
    closing = linked[:, low[masks]].T.astype(np.int64)
    return masks, (ways[masks] * closing).sum(axis=1) // 2


def pairings(weight: Masks, k: int) -> tuple[Masks, Masks, npt.NDArray[np.int8]]:
    """Find the lightest pairing of every subset of k devices, k even, by subset enumeration.

    The lowest member of a subset is tried with each partner. Returns like ``rings``; orders hold
    the pairs one after the other.
    """
    n = len(weight)
    layers, low = by_size(n, k), _lowest(n)
    best = np.full(1 << n, _FAR, dtype=np.int64)
    best[0] = 0
    partner = np.zeros(1 << n, dtype=np.int64)
    for layer in layers[2::2]:
        first = low[layer]
        for mate in range(n):
            fits = (layer >> mate & 1 == 1) & (first != mate)
            masks, heads = layer[fits], first[fits]
            total = best[masks ^ (1 << mate) ^ (np.int64(1) << heads)] + weight[heads, mate]
            better = total < best[masks]
            best[masks[better]] = total[better]
            partner[masks[better]] = mate
    masks = layers[k]
    orders = np.zeros((len(masks), k), dtype=np.int8)
    left = masks.copy()
    for place in range(0, k, 2):
        orders[:, place], orders[:, place + 1] = low[left], partner[left]
        left = left ^ (np.int64(1) << low[left]) ^ (np.int64(1) << partner[left])
    return masks, best[masks], orders


def cliques(weight: Masks, k: int) -> tuple[Masks, Masks, npt.NDArray[np.int8]]:
    """Weigh all pairs of every subset of k devices. Returns like ``rings``; ascending orders."""
    n = len(weight)
    low = _lowest(n)
    masks = by_size(n, k)[k]
    orders = np.zeros((len(masks), k), dtype=np.int8)
    left = masks.copy()
    for place in range(k):
        orders[:, place] = low[left]
        left = left ^ (np.int64(1) << low[left])
    total = np.zeros(len(masks), dtype=np.int64)
    for i in range(k):
        for j in range(i):
            total += weight[orders[:, i], orders[:, j]]
    return masks, total, orders


Counts = tuple[tuple[int, ...], ...]
Ring = tuple[int, ...]
#: The most rings examined per set of GPUs; a DGX-1V has 30.
MAX_RINGS = 3000


def most_rings(counts: Sequence[Sequence[int]]) -> int:
    """An upper bound on the number of rings: every ring takes two links at every GPU."""
    return min((sum(row) // 2 for row in counts), default=0)


def ring_orders(counts: Sequence[Sequence[int]]) -> Iterator[Ring]:
    """Yield every distinct ring (without regard to direction and start) over pairs with links."""
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
        """Ring number ``at``, made at its first use; None past the last."""
        while len(self.rings) <= at < MAX_RINGS:
            ring = next(self.coming, None)
            if ring is None:
                return None
            self.rings.append(ring)
        return self.rings[at] if at < len(self.rings) else None

    def run(self, left: list[list[int]], taken: tuple[Ring, ...], start: int) -> None:
        """Add rings in order, with repetition, while links are left; the largest set is kept."""
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
                _change_edges(left, edges, -1)
                self.run(left, (*taken, ring), at)
                _change_edges(left, edges, 1)
            at += 1


def _change_edges(left: list[list[int]], edges: list[tuple[int, int]], change: int) -> None:
    for a, b in edges:
        left[a][b] += change
        left[b][a] += change


def disjoint_rings(counts: Counts, thorough: bool = True) -> tuple[Ring, ...]:
    """Find a largest set of rings that share no link; counts[i][j]: links between i and j.

    First greedily: the first ring of the remaining links, repeatedly. If that is below the bound of
    ``most_rings`` and ``thorough`` is set, all sets are searched. The result is exact if there are
    fewer than MAX_RINGS rings and the search ends within ten times as many steps, or reaches the
    bound. Empty for fewer than three GPUs and if no ring exists.
    """
    left = [list(row) for row in counts]
    greedy: list[Ring] = []
    while (ring := next(ring_orders(left), None)) is not None:
        greedy.append(ring)
        _change_edges(left, list(pairwise((*ring, ring[0]))), -1)
    goal = most_rings(counts)
    if len(greedy) == goal or not (greedy and thorough):
        return tuple(greedy)
    search = _Search(ring_orders(counts), goal, best=tuple(greedy))
    search.run([list(row) for row in counts], (), 0)
    return search.best


Rows = tuple[tuple[int, ...], ...]
#: For more members, only one section of the ring is tried for each shape of a grid.
MANY = 128


@dataclass(frozen=True)
class Grid:
    """Rows of ids, all of one length; ``row_rate`` and ``column_rate``: bytes per second per ring.

    ``busbw`` is that of an all-reduce: reduce-scatter in all rows at once, all-reduce of the shares
    in all columns, all-gather in the rows; one ring each.
    """

    rows: tuple[tuple[str, ...], ...]
    row_rate: float
    column_rate: float
    busbw: float


def best_grid(routes: GpuRoutes, links: DirectedLinks, order: Sequence[int]) -> Grid | None:
    """The fastest r x c grid, r and c at least 2, from a ring order; None if k allows no grid.

    Rows are sections of the ring; each further row is rotated and mirrored so that its columns fit
    the row above. All sections and shapes are tried, k**2 drafts at most, but for orders of more
    than ``MANY`` only the first section of each shape.
    """
    k, grids = len(order), []
    ranks = np.array([[routes.rank[a][b] for b in order] for a in order])
    for across in range(2, k // 2 + 1):
        if k % across:
            continue
        for shift in range(across if k <= MANY else 1):
            turned = [*range(shift, k), *range(shift)]
            drafts = _aligned(ranks, [turned[at : at + across] for at in range(0, k, across)])
            rows = tuple(tuple(order[at] for at in row) for row in drafts)
            row_rate, column_rate = _rates(links, rows)
            if row_rate and column_rate:
                busbw = _busbw(k, across, row_rate, column_rate)
                grids.append((-busbw, -across, rows, row_rate, column_rate))
    if not grids:
        return None
    busbw, _, rows, row_rate, column_rate = min(grids)
    ids = tuple(tuple(routes.ids[at] for at in row) for row in rows)
    return Grid(ids, row_rate, column_rate, -busbw)


def _aligned(ranks: npt.NDArray[np.int64], rows: list[list[int]]) -> Rows:
    """Rotate and mirror each row to fit the one above: fewest hops of the worst class first."""
    done = [tuple(rows[0])]
    size = len(rows[0])
    turns = (np.arange(size)[:, None] + np.arange(size)) % size
    turns = np.concatenate([turns, turns[:, ::-1]])
    for row in rows[1:]:
        choices = np.array(row)[turns]
        hops = np.sort(ranks[np.array(done[-1]), choices], axis=1)
        # Compare the worst hop, then the second worst, …; then the members themselves.
        keys = (*choices.T[::-1], *hops.T)
        done.append(tuple(choices[np.lexsort(keys)[0]].tolist()))
    return tuple(done)


def _rates(links: DirectedLinks, rows: Rows) -> tuple[float, float]:
    across: list[Flow] = [flow for row in rows for flow in ring_flows(row)]
    down: list[Flow] = [flow for column in zip(*rows, strict=True) for flow in ring_flows(column)]
    row_rate, column_rate = links.rates([across, down])
    return float(row_rate), float(column_rate)


def _busbw(k: int, across: int, row_rate: float, column_rate: float) -> float:
    """Bus bandwidth of the two-dimensional all-reduce per byte of the vector, without latency."""
    down = k // across
    seconds = 2 * (across - 1) / across / row_rate
    seconds += 2 * (down - 1) / down / across / column_rate
    return 2 * (k - 1) / k / seconds


def groups(routes: GpuRoutes, order: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """Split an order by host, else by NUMA node, else by root complex or switch.

    A kind of unit that separates every GPU is skipped; one group if no kind splits the order.
    """
    topology = routes.topology.graph.topology
    for kind in (Kind.HOST, Kind.NUMA, Kind.ROOT, Kind.BRIDGE):
        split: dict[str, list[str]] = {}
        for at in order:
            above = topology.ancestor(routes.ids[at], kind)
            split.setdefault(above.id if above else "", []).append(routes.ids[at])
        if 1 < len(split) < len(order):
            return tuple(map(tuple, split.values()))
    return (tuple(routes.ids[at] for at in order),)
