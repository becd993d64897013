"""Direct all-to-all: everyone sends everyone else its part, at once."""

import numpy as np

from collectives.moves import Moves, moves
from collectives.schedule import Schedule, Step


def direct(n: int) -> Schedule:
    """1 step; (n−1)/n of a rank's parts each way."""
    ranks = np.arange(n)

    def make(rank: int | None) -> Moves:
        if rank is None:
            src = np.repeat(ranks, n - 1)
            dst = (src + np.tile(ranks[1:], n)) % n
        else:
            others, me = np.delete(ranks, rank), np.full(n - 1, rank)
            src, dst = np.concatenate([me, others]), np.concatenate([others, me])
        return moves(src, dst, src * n + dst)

    return Schedule(n, n * n, (Step(make),) if n > 1 else ())
