"""Direct reduce-scatter: everyone sends everyone else the chunk that they serve, at once."""

import numpy as np

from collectives.moves import Moves, moves
from collectives.schedule import Schedule, Step


def direct(n: int) -> Schedule:
    """One step, in which rank r sends chunk d to every rank d. (n−1)/n of the vector each way."""
    ranks = np.arange(n)

    def make(rank: int | None) -> Moves:
        if rank is None:
            src = np.repeat(ranks, n - 1)
            dst = (src + np.tile(np.arange(1, n), n)) % n
        else:
            others = (rank + np.arange(1, n)) % n
            src = np.concatenate([np.full(n - 1, rank), others])
            dst = np.concatenate([others, np.full(n - 1, rank)])
        return moves(src, dst, dst, reduce=True)

    return Schedule(n, n, (Step(make),) if n > 1 else ())
