"""Ring all-reduces in both directions at once, each on half of the vector."""

from collectives.algorithms.allreduce.ring import ring
from collectives.schedule.passes import beside, relabel
from collectives.schedule.schedule import Schedule


def bidirectional_ring(n: int) -> Schedule:
    """2(n−1) steps; 2(n−1)/n of the vector each way, half of it over each neighbour's link."""
    return beside(ring(n), relabel(ring(n), list(reversed(range(n)))))
