"""Recursive doubling all-gather: recursive halving, reversed."""

from busbar.errors import Unsupported
from collectives.algorithms.reduce_scatter.halving import halving
from collectives.schedule.passes import reverse
from collectives.schedule.schedule import Schedule


def doubling(n: int) -> Schedule:
    """In lg n steps; (n−1)/n of the vector each way.

    Raises Unsupported unless n is a power of two.
    """
    if n & (n - 1):
        raise Unsupported(
            f"doubling needs a power of two of ranks, not {n}; bruck takes any number"
        )
    return reverse(halving(n))
