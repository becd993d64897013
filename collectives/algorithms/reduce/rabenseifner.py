"""Rabenseifner's reduce (2004): recursive halving reduce-scatter, then a binomial gather."""

from collectives.algorithms.allreduce.halving_doubling import folded_halving, stayers
from collectives.algorithms.gather.binomial import binomial
from collectives.schedule.passes import on_groups, rotate, then
from collectives.schedule.schedule import Schedule


def rabenseifner(n: int, root: int = 0) -> Schedule:
    """2 lg n steps; 2(n−1)/n of the vector at most, out and in, when n is a power of two.

    Other n are folded onto the power of two below, which costs a step and one vector more.
    """
    group = stayers(n)
    gather = on_groups(binomial(len(group)), [group], nranks=n, nchunks=len(group))
    return rotate(then(folded_halving(n), gather), root)
