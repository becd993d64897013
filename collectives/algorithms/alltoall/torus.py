"""2-D torus all-to-all: parts go along the columns of a grid first, then along its rows."""

from collections.abc import Sequence

from collectives.algorithms.allreduce.torus import checked_grid
from collectives.algorithms.alltoall.hierarchical import hierarchical
from collectives.schedule.schedule import Schedule


def torus(n: int, grid: Sequence[int] | None = None) -> Schedule:
    """X×Y ranks: X−1 + Y−1 steps; (X−1)/X + (Y−1)/Y of a rank's parts each way.

    ``grid`` and errors as in the torus all-reduce.
    """
    return hierarchical(n, checked_grid(n, grid))
