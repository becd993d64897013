"""Who sends to whom when everyone sends to everyone else at once."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["everyone"]

Ranks = NDArray[np.int64]


def everyone(n: int, rank: int | None) -> tuple[Ranks, Ranks]:
    """Senders and receivers of all ordered pairs of n ranks, or of those that a rank is in.

    In the order of senders; each serves the next rank first, so that no receiver is everyone's
    first.
    """
    src = np.arange(n) if rank is None else np.array([rank])
    src = np.repeat(src, n - 1)
    dst = (src + np.tile(np.arange(1, n), len(src) // max(1, n - 1))) % n
    if rank is None:
        return src, dst
    before, after = np.arange(rank), np.arange(rank + 1, n)
    to_me = [np.full(len(part), rank) for part in (before, after)]
    return np.concatenate([before, src, after]), np.concatenate([to_me[0], dst, to_me[1]])
