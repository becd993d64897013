"""Every rank sends its vector to the next rank, at once."""

import numpy as np

from collectives.schedule.moves import moves
from collectives.schedule.schedule import Schedule, Step


def direct(n: int) -> Schedule:
    """1 step; one vector each way."""
    src = np.arange(n)
    step = Step.fixed(moves(src, (src + 1) % n, src))
    return Schedule(n, n, (step,) if n > 1 else ())
