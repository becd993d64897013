"""Swing (De Sensi et al., NSDI 2024): halving and doubling with partners that swing to and fro.

In step s rank r exchanges with the rank at distance δ(s) = (1 − (−2)^(s+1)) / 3, forwards if r is
even and backwards if r is odd. Thus partners are close to each other on a torus.
"""

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unsupported
from collectives.schedule.moves import moves
from collectives.schedule.passes import reverse, then
from collectives.schedule.schedule import Schedule, Step

Ranks = NDArray[np.int64]


def _partners(n: int) -> Ranks:
    """The partner of rank r in step s as an array: partner[s, r]."""
    r = np.arange(n)
    rows = []
    for s in range(n.bit_length() - 1):
        distance = (1 - (-2) ** (s + 1)) // 3
        rows.append(np.where(r % 2 == 0, r + distance, r - distance) % n)
    return np.array(rows, np.int64).reshape(-1, n)


def _starts(n: int, partner: Ranks) -> Ranks:
    """The first chunk for which rank r is responsible from step s on: start[s, r].

    ``reach[s][r]``: the ranks that r can still reach from step s on. Their number halves in each
    step. Chunks are numbered so that each half is a run of chunks.
    """
    steps = len(partner)
    reach = [[{r} for r in range(n)]]
    for s in reversed(range(steps)):
        after = reach[0]
        reach.insert(0, [after[r] | after[partner[s, r]] for r in range(n)])
    start = np.zeros((steps + 1, n), np.int64)
    for s in range(steps):
        for r in range(n):
            own, theirs = reach[s + 1][r], reach[s + 1][partner[s, r]]
            start[s + 1, r] = start[s, r] + (len(own) if min(theirs) < min(own) else 0)
    return start


def swing(n: int) -> Schedule:
    """2 lg n steps; 2(n−1)/n of the vector each way. Raises Unsupported unless n is 2^k."""
    if n & (n - 1):
        raise Unsupported(f"swing needs a power of two of ranks, not {n}; use ring")
    partner = _partners(n)
    start = _starts(n, partner)

    def step(s: int) -> Step:
        to = partner[s]
        first = start[s + 1, to]
        return Step(lambda: moves(np.arange(n), to, first, count=n >> (s + 1), reduce=True))

    scatter = Schedule(n, n, tuple(step(s) for s in range(len(partner))))
    return then(scatter, reverse(scatter))
