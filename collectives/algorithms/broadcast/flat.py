"""Flat broadcast: the root sends the vector to all ranks, at once."""

import numpy as np

from collectives.schedule.moves import moves
from collectives.schedule.passes import rotate
from collectives.schedule.schedule import Schedule, Step


def flat(n: int, root: int = 0) -> Schedule:
    """1 step; the root sends the vector n−1 times, every other rank receives it once."""
    others = np.arange(1, n)

    step = Step.fixed(moves(0, others, 0))
    return rotate(Schedule(n, 1, (step,) if n > 1 else ()), root)
