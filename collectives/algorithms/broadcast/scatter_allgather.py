"""Scatter, then all-gather (van de Geijn 1994): for long vectors on any number of ranks."""

from collectives.algorithms.allgather.ring import ring
from collectives.algorithms.scatter.binomial import binomial
from collectives.schedule.passes import rotate, then
from collectives.schedule.schedule import Schedule


def scatter_allgather(n: int, root: int = 0) -> Schedule:
    """⌈lg n⌉ + n−1 steps; the root sends the vector at most twice, others receive it about once."""
    return rotate(then(binomial(n), ring(n)), root)
