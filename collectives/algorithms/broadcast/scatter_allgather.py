"""Scatter, then all-gather (van de Geijn 1994): for long vectors on any number of ranks."""

from collectives.algorithms.allgather.ring import ring
from collectives.algorithms.scatter.flat import flat
from collectives.schedule.passes import rotate, then
from collectives.schedule.schedule import Schedule


def scatter_allgather(n: int, root: int = 0) -> Schedule:
    """In n steps; the root sends the vector at most twice, others receive it once.

    The root scatters to all at once, and not down a binomial tree: it sends as many bytes either
    way, the ring takes n−1 steps anyhow, and nobody waits for a part that shares the root's port
    with those of the root's later steps.
    """
    return rotate(then(flat(n), ring(n)), root)
