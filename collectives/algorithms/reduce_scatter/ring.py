"""Ring reduce-scatter (Patarasuk, Yuan 2009): each chunk goes round once and is added to."""

import numpy as np

from collectives.schedule.moves import moves
from collectives.schedule.schedule import Schedule, Step


def ring(n: int) -> Schedule:
    """n−1 steps; (n−1)/n of the vector each way.

    In step s rank r passes chunk r−1−s on to rank r+1.
    """
    r = np.arange(n)

    def step(s: int) -> Step:
        return Step(lambda: moves(r, (r + 1) % n, (r - 1 - s) % n, reduce=True), signature="ring")

    return Schedule(n, n, tuple(step(s) for s in range(n - 1)))
