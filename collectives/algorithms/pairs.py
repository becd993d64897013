"""The pairs of ranks for algorithms in which every rank sends to every other rank at once."""

import numpy as np
from numpy.typing import NDArray

Ranks = NDArray[np.int64]


def everyone(n: int) -> tuple[Ranks, Ranks]:
    """The senders and the receivers of all ordered pairs of n ranks.

    Pairs are in the order of senders. Each sender sends to the next rank first, so that not all
    ranks send to the same rank first.
    """
    src = np.repeat(np.arange(n), n - 1)
    return src, (src + np.tile(np.arange(1, n), n)) % n
