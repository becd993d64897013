"""Recursive halving reduce-scatter (Rabenseifner 2004): exchange halves with ever nearer ranks."""

import numpy as np

from busbar.errors import Unsupported
from collectives.schedule.moves import Moves, moves
from collectives.schedule.schedule import Schedule, Step


def halving(n: int) -> Schedule:
    """In lg n steps; (n−1)/n of the vector each way.

    Raises Unsupported unless n is a power of two.
    """
    if n & (n - 1):
        raise Unsupported(f"halving needs a power of two of ranks, not {n}; bruck does not")

    r = np.arange(n)

    def step(half: int) -> Step:
        def make() -> Moves:
            # The partner's half of the chunks for which both are still responsible.
            theirs = (r ^ half) & ~(half - 1)
            return moves(r, r ^ half, theirs, count=half, reduce=True)

        return Step(make)

    halves = [1 << bit for bit in reversed(range(n.bit_length() - 1))]
    return Schedule(n, n, tuple(step(half) for half in halves))
