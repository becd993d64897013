"""Flat gather: the flat scatter, reversed."""

from collectives.algorithms.scatter.flat import flat as scatter_flat
from collectives.schedule.passes import reverse
from collectives.schedule.schedule import Schedule


def flat(n: int, root: int = 0) -> Schedule:
    """1 step; the root receives (n−1)/n of the vector, every other rank sends 1/n."""
    return reverse(scatter_flat(n, root))
