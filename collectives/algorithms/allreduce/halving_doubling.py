"""Recursive halving reduce-scatter, recursive doubling all-gather (Rabenseifner 2004)."""

from collections.abc import Callable

import numpy as np

from collectives.algorithms.allgather.doubling import doubling
from collectives.algorithms.reduce_scatter.halving import halving
from collectives.schedule.moves import moves
from collectives.schedule.passes import on_groups, reverse, then
from collectives.schedule.schedule import Schedule, Step


def folded(n: int, core: Callable[[int], Schedule], *, unfold: bool) -> Schedule:
    """A reduction for a power of two of ranks, on any number n of them.

    With q the power of two below, n − q ranks first give their vector to a neighbour; with
    ``unfold`` they get the result from it at the end. ``core(q)`` runs on the others, of which
    rank 0 is the first.
    """
    q = 1 << (n.bit_length() - 1)
    extra = n - q
    if extra == 0:
        return core(n)
    # Ranks 1, 3, 5 … 2·extra−1 are folded onto 0, 2, 4 …
    stay = np.arange(0, 2 * extra, 2)
    fold = Schedule(n, 1, (Step.fixed(moves(stay + 1, stay, 0, reduce=True)),))
    group = [*range(0, 2 * extra, 2), *range(2 * extra, n)]
    inner = core(q)
    middle = on_groups(inner, [group], nranks=n, nchunks=inner.nchunks)
    return then(fold, middle, reverse(fold)) if unfold else then(fold, middle)


def halving_doubling(n: int) -> Schedule:
    """2 lg n steps; 2(n−1)/n of the vector each way, when n is a power of two.

    Other n are folded onto the power of two below, which costs 2 steps and one vector each way.
    """
    return folded(n, lambda q: then(halving(q), doubling(q)), unfold=True)
