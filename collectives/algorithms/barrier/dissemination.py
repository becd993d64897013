"""Dissemination barrier (Hensgen, Finkel, Manber 1988): tell the rank 1, 2, 4, … places on."""

import numpy as np

from collectives.schedule.moves import moves
from collectives.schedule.schedule import Schedule, Step


def dissemination(n: int) -> Schedule:
    """⌈lg n⌉ steps, in each of which every rank sends one token and receives one.

    After the step of distance d a rank has the tokens of the 2d ranks that end with itself.
    """
    ranks = np.arange(n)

    def step(distance: int) -> Step:
        return Step(lambda: moves(ranks, (ranks + distance) % n, 0, reduce=True))

    return Schedule(n, 1, tuple(step(1 << bit) for bit in range((n - 1).bit_length())))
