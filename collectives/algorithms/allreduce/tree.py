"""Binomial tree: reduce to rank 0, then broadcast from it."""

from collectives.algorithms.broadcast.binomial import binomial as broadcast_binomial
from collectives.algorithms.reduce.binomial import binomial as reduce_binomial
from collectives.schedule.passes import then
from collectives.schedule.schedule import Schedule


def tree(n: int) -> Schedule:
    """2⌈lg n⌉ steps; the root receives and sends the vector ⌈lg n⌉ times."""
    return then(reduce_binomial(n), broadcast_binomial(n))
