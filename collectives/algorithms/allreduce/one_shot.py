"""Every rank sends its whole vector to every other, and each adds for itself."""

import numpy as np

from collectives.moves import Moves, moves
from collectives.schedule import Schedule, Step


def one_shot(n: int) -> Schedule:
    """1 step; n−1 vectors each way: the least latency, the most bytes."""

    def make(rank: int | None) -> Moves:
        if rank is None:
            src = np.repeat(np.arange(n), n - 1)
            return moves(src, (src + np.tile(np.arange(1, n), n)) % n, 0, reduce=True)
        others = (rank + np.arange(1, n)) % n
        me = np.full(n - 1, rank)
        src, dst = np.concatenate([me, others]), np.concatenate([others, me])
        return moves(src, dst, 0, reduce=True)

    return Schedule(n, 1, (Step(make),) if n > 1 else ())
