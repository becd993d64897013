"""Exact searches over all subsets of up to 16 devices at once. Knows integers, not devices.

Weights make a sum out of "fewest hops of the worst class, then fewest of the second worst, …": a
hop of class c weighs base**c, where base exceeds the number of hops, so sums compare as the counts
do from the worst class down. The narrowest hop is then as wide as it can be, and no wide link is
left for a narrow one without need. On a tree of switches such a ring crosses every link once each
way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

EXACT_LIMIT = 16
Masks = npt.NDArray[np.int64]
_FAR = np.int64(1) << 62


def weights(ranks: Sequence[Sequence[int]], hops: int) -> Masks:
    """Return int64 weights, shape (n, n), for sums of at most ``hops`` entries of class ranks.

    Where 62 bits do not hold the classes apart (15 classes for rings of 16), the best ones are one.
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
    """Return the bit masks of n devices by number of members, 0 to k; each list ascending."""
    masks = np.arange(1 << n, dtype=np.int64)
    sizes = np.zeros(1 << n, dtype=np.int64)
    for bit in range(n):
        sizes += masks >> bit & 1
    return [masks[sizes == size] for size in range(k + 1)]


def rings(weight: Masks, k: int) -> tuple[Masks, Masks, npt.NDArray[np.int8]]:
    """Find the lightest ring through every subset of k of the n devices (Held and Karp, 1962).

    State (subset, last): the lightest path from the subset's lowest member over all of it to last.
    All subsets of one size are extended together; 2**n x n states, n <= 16, k >= 2. Returns masks
    (m,), weights (m,) and orders (m, k) that start at the lowest member. Symmetric weights, > 0.
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
    # Of the two directions of a ring, the one whose second member is the lower.
    turned = orders[:, 1] > orders[:, -1]
    orders[turned, 1:] = orders[turned, :0:-1]
    return orders


def count_rings(linked: npt.NDArray[np.bool_], k: int) -> tuple[Masks, Masks]:
    """Count, for every subset of k >= 3 devices, the distinct rings that use linked pairs only.

    Rings that differ by where they start or by direction are one. Returns masks and counts, (m,).
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

    The lowest member of a subset takes each partner in turn. Returns as ``rings`` does; orders hold
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
    """Weigh all pairs of every subset of k devices. Returns as ``rings``; orders are ascending."""
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
