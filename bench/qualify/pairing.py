"""Rounds of disjoint pairs. No input or output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

import numpy as np

Pair = tuple[int, int]


def rounds(nhosts: int) -> int:
    """The number of rounds of disjoint pairs in which every pair of hosts occurs once."""
    return max(0, nhosts - 1 + nhosts % 2)


def round_of_pairs(nhosts: int, number: int, seed: int) -> list[Pair]:
    """Round `number` of a one-factorisation of the complete graph over hosts in a random order.

    The circle method: one place stays, all others move on by one in each round. With an odd number
    of hosts, one of them has no partner in each round.
    """
    places = nhosts + nhosts % 2
    if places < 2:
        return []
    order = np.random.default_rng([seed, 1]).permutation(places)
    turning = places - 1
    offsets = np.arange(1, places // 2)
    left = np.append(turning, (number + offsets) % turning)
    right = np.append(number % turning, (number - offsets) % turning)
    pairs = zip(order[left].tolist(), order[right].tolist(), strict=True)
    return [(a, b) for a, b in pairs if a < nhosts and b < nhosts]


def matching(pairs: Iterable[Pair], used: Set[int] = frozenset()) -> Iterator[Pair]:
    """The pairs, in order, that share no host with an earlier pair or with `used`."""
    taken = set(used)
    for a, b in pairs:
        if a != b and a not in taken and b not in taken:
            taken |= {a, b}
            yield a, b
