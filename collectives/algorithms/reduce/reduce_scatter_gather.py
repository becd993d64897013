"""Reduce-scatter round a ring, then gather: the scatter-all-gather broadcast, reversed."""

from collectives.algorithms.gather.binomial import binomial
from collectives.algorithms.reduce_scatter.ring import ring
from collectives.schedule.passes import rotate, then
from collectives.schedule.schedule import Schedule


def reduce_scatter_gather(n: int, root: int = 0) -> Schedule:
    """n−1 + ⌈lg n⌉ steps; the root receives the vector at most twice, others send it about once."""
    return rotate(then(ring(n), binomial(n)), root)
