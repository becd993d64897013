"""Scatter, then all-gather (van de Geijn 1994): for long vectors on any number of ranks."""

from collectives.algorithms.allgather.ring import ring
from collectives.algorithms.scatter.flat import flat
from collectives.schedule.passes import rotate, then
from collectives.schedule.schedule import Schedule


def scatter_allgather(n: int, root: int = 0) -> Schedule:
    """In n steps; the root sends the vector at most twice, others receive it once.

    The root scatters to all ranks at once, and not down a binomial tree. The root sends as many
    bytes either way, and the ring takes n−1 steps anyhow. With a tree, ranks would wait for parts
    that share the root's port with the parts of the root's later steps.
    """
    return rotate(then(flat(n), ring(n)), root)
