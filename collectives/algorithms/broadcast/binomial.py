"""Binomial-tree broadcast: the number of ranks that have the vector doubles in every step."""

import numpy as np

from collectives.schedule.moves import moves
from collectives.schedule.passes import rotate
from collectives.schedule.schedule import Schedule, Step


def binomial(n: int, root: int = 0) -> Schedule:
    """⌈lg n⌉ steps; the root sends the vector ⌈lg n⌉ times, every other rank receives it once."""
    steps = []
    have = 1
    while have < n:
        src = np.arange(min(have, n - have))
        steps.append(Step.fixed(moves(src, src + have, 0)))
        have *= 2
    return rotate(Schedule(n, 1, tuple(steps)), root)
