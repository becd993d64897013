"""Pairwise all-to-all: in step s every rank sends to the rank s places on."""

import numpy as np

from collectives.moves import Moves, moves
from collectives.schedule import Schedule, Step


def pairwise(n: int) -> Schedule:
    """n−1 steps, in each of which a rank sends one part and receives one; (n−1)/n each way."""

    def step(distance: int) -> Step:
        def make(rank: int | None) -> Moves:
            src = np.arange(n) if rank is None else np.unique([rank, (rank - distance) % n])
            dst = (src + distance) % n
            return moves(src, dst, src * n + dst)

        return Step(make)

    return Schedule(n, n * n, tuple(step(distance) for distance in range(1, n)))
