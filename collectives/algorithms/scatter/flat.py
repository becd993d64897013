"""Flat scatter: the root sends every rank its part, at once."""

import numpy as np

from collectives.schedule.moves import moves
from collectives.schedule.passes import rotate
from collectives.schedule.schedule import Schedule, Step


def flat(n: int, root: int = 0) -> Schedule:
    """1 step; the root sends (n−1)/n of the vector, every other rank receives 1/n."""
    others = np.arange(1, n)

    step = Step.fixed(moves(0, others, others))
    return rotate(Schedule(n, n, (step,) if n > 1 else ()), root, chunks=True)
