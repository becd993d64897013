"""Recursive doubling: exchange whole vectors with ranks at distance 1, 2, 4, …."""

import numpy as np

from busbar.errors import Unsupported
from collectives.schedule.moves import moves
from collectives.schedule.schedule import Schedule, Step


def recursive_doubling(n: int) -> Schedule:
    """In lg n steps; lg n vectors each way. Raises Unsupported unless n is a power of two."""
    if n & (n - 1):
        raise Unsupported(
            f"recursive_doubling needs a power of two of ranks, not {n};"
            " use tree, or halving_doubling, which folds"
        )

    r = np.arange(n)

    def step(distance: int) -> Step:
        return Step(lambda: moves(r, r ^ distance, 0, reduce=True))

    return Schedule(n, 1, tuple(step(1 << bit) for bit in range(n.bit_length() - 1)))
