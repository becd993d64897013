"""Ring all-gather: the ring reduce-scatter, reversed."""

from collectives.algorithms.reduce_scatter.ring import ring as reduce_scatter_ring
from collectives.schedule.passes import reverse
from collectives.schedule.schedule import Schedule


def ring(n: int) -> Schedule:
    """n−1 steps, in which each chunk goes round the ring once; (n−1)/n of the vector each way."""
    return reverse(reduce_scatter_ring(n))
