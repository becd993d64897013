"""Binomial-tree scatter: in every step the ranks that have parts pass half of them on."""

import numpy as np

from collectives.schedule.moves import moves
from collectives.schedule.passes import rotate
from collectives.schedule.schedule import Schedule, Step


def binomial(n: int, root: int = 0) -> Schedule:
    """⌈lg n⌉ steps; the root sends (n−1)/n of the vector, others receive what they pass on."""
    steps = []
    for bit in reversed(range((n - 1).bit_length())):
        half = 1 << bit
        src = np.arange(0, n - half, 2 * half)
        count = np.minimum(half, n - src - half)
        steps.append(Step.fixed(moves(src, src + half, src + half, count=count)))
    return rotate(Schedule(n, n, tuple(steps)), root, chunks=True)
