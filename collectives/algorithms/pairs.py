"""Who sends to whom when everyone sends to everyone else at once."""

import numpy as np
from numpy.typing import NDArray

Ranks = NDArray[np.int64]


def everyone(n: int) -> tuple[Ranks, Ranks]:
    """Senders and receivers of all ordered pairs of n ranks.

    In the order of senders; each serves the next rank first, so that no receiver is everyone's
    first.
    """
    src = np.repeat(np.arange(n), n - 1)
    return src, (src + np.tile(np.arange(1, n), n)) % n
