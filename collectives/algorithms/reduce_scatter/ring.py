"""Ring reduce-scatter (Patarasuk, Yuan 2009): each chunk goes round once and is added to."""

import numpy as np

from collectives.schedule.moves import Moves, moves
from collectives.schedule.schedule import Schedule, StepRun, Steps


def ring(n: int) -> Schedule:
    """n−1 steps; (n−1)/n of the vector each way.

    In step s rank r passes chunk r−1−s on to rank r+1.
    """
    r = np.arange(n)

    def step(s: int) -> Moves:
        return moves(r, (r + 1) % n, (r - 1 - s) % n, reduce=True)

    return Schedule(n, n, Steps([StepRun(n - 1, step, "ring")]))
