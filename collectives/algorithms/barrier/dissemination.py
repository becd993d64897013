"""Dissemination barrier (Hensgen, Finkel, Manber 1988): tell the rank 1, 2, 4, … places on."""

import numpy as np

from collectives.moves import Moves, moves
from collectives.schedule import Schedule, Step


def dissemination(n: int) -> Schedule:
    """⌈lg n⌉ steps, in each of which every rank sends one token and receives one.

    After the step of distance d a rank has heard, directly or not, of the 2d ranks up to itself.
    """

    def step(distance: int) -> Step:
        def make(rank: int | None) -> Moves:
            src = np.arange(n) if rank is None else np.unique([rank, (rank - distance) % n])
            return moves(src, (src + distance) % n, 0, reduce=True)

        return Step(make)

    return Schedule(n, 1, tuple(step(1 << bit) for bit in range((n - 1).bit_length())))
