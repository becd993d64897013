"""Every rank sends its vector to the next one, at once."""

import numpy as np

from collectives.moves import Moves, moves
from collectives.schedule import Schedule, Step


def direct(n: int) -> Schedule:
    """1 step; one vector each way."""

    def make(rank: int | None) -> Moves:
        src = np.arange(n) if rank is None else np.unique([rank, (rank - 1) % n])
        return moves(src, (src + 1) % n, src)

    return Schedule(n, n, (Step(make),) if n > 1 else ())
