"""Binomial-tree gather: the binomial-tree scatter, reversed."""

from collectives.algorithms.scatter.binomial import binomial as scatter_binomial
from collectives.schedule.passes import reverse
from collectives.schedule.schedule import Schedule


def binomial(n: int, root: int = 0) -> Schedule:
    """⌈lg n⌉ steps; the root receives (n−1)/n of the vector, every other rank sends what it has."""
    return reverse(scatter_binomial(n, root))
