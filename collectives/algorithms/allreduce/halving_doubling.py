"""Recursive halving reduce-scatter, recursive doubling all-gather (Rabenseifner 2004)."""

import numpy as np

from collectives.algorithms.allgather.doubling import doubling
from collectives.algorithms.reduce_scatter.halving import halving
from collectives.moves import moves
from collectives.passes import on_groups, reverse, then
from collectives.schedule import Schedule, Step


def halving_doubling(n: int) -> Schedule:
    """2 lg n steps; 2(n−1)/n of the vector each way, when n is a power of two.

    Other n are folded onto the power of two q below: n − q ranks first give their vector to a
    neighbour and at the end get the result from it, which costs 2 steps and one vector each way.
    """
    q = 1 << (n.bit_length() - 1)
    core = then(halving(q), doubling(q))
    if q == n:
        return core
    extra = n - q
    # Ranks 0, 2, 4 … 2·extra−2 are folded onto 1, 3, 5 …
    folded = np.arange(0, 2 * extra, 2)
    fold = Schedule(n, 1, (Step.fixed(moves(folded, folded + 1, 0, reduce=True)),))
    group = [*range(1, 2 * extra, 2), *range(2 * extra, n)]
    return then(fold, on_groups(core, [group], nranks=n, nchunks=q), reverse(fold))
