"""2-D torus all-gather: the torus reduce-scatter, reversed."""

from collections.abc import Sequence

from collectives.algorithms.reduce_scatter.torus import torus as reduce_scatter_torus
from collectives.schedule.passes import reverse
from collectives.schedule.schedule import Schedule


def torus(n: int, grid: Sequence[int] | None = None) -> Schedule:
    """X×Y ranks: X−1 + Y−1 steps; (n−1)/n of the vector each way.

    ``grid`` as in the all-reduce.
    """
    return reverse(reduce_scatter_torus(n, grid))
