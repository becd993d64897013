"""Ranks 0 and 1, 2 and 3, … exchange their vectors."""

import numpy as np

from collectives.schedule.moves import moves
from collectives.schedule.schedule import Schedule, Step


def direct(n: int) -> Schedule:
    """1 step; one vector each way. Of an odd number of ranks the last one has no partner."""
    paired = np.arange(n - n % 2)

    step = Step.fixed(moves(paired, paired ^ 1, paired))
    return Schedule(n, n, (step,) if n > 1 else ())
