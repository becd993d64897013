"""Ring reduce-scatter (Patarasuk, Yuan 2009): each chunk goes round once and is added to."""

import numpy as np

from collectives.moves import moves
from collectives.schedule import Schedule, Step


def ring(n: int) -> Schedule:
    """n−1 steps; (n−1)/n of the vector each way.

    In step s rank r passes chunk r−1−s on to rank r+1.
    """

    def step(s: int) -> Step:
        def make(rank: int | None) -> object:
            r = np.arange(n) if rank is None else np.unique([(rank - 1) % n, rank])
            return moves(r, (r + 1) % n, (r - 1 - s) % n, reduce=True)

        return Step(make, alike="ring")  # type: ignore[arg-type]

    return Schedule(n, n, tuple(step(s) for s in range(n - 1)))
