"""Pairwise all-to-all: in step s every rank r sends to rank r + s (mod n)."""

import numpy as np

from collectives.schedule.moves import moves
from collectives.schedule.schedule import Schedule, Step


def pairwise(n: int) -> Schedule:
    """n−1 steps, in each of which a rank sends one part and receives one; (n−1)/n each way."""
    src = np.arange(n)

    def step(distance: int) -> Step:
        dst = (src + distance) % n
        return Step(lambda: moves(src, dst, src * n + dst))

    return Schedule(n, n * n, tuple(step(distance) for distance in range(1, n)))
