"""2-D torus reduce-scatter: rings along the columns of a grid, then along its rows."""

from collections.abc import Sequence

from collectives.algorithms.allreduce.torus import checked_grid
from collectives.algorithms.reduce_scatter.ring import ring
from collectives.schedule.passes import on_groups, then
from collectives.schedule.schedule import Schedule


def torus(n: int, grid: Sequence[int] | None = None) -> Schedule:
    """X×Y ranks: X−1 + Y−1 steps; (n−1)/n of the vector each way.

    Rank r is in column r mod X and row r div X, so a row's chunks are one run. ``grid`` and errors
    as in the torus all-reduce.
    """
    x, y = checked_grid(n, grid)
    columns = [[i + x * j for j in range(y)] for i in range(x)]
    rows = [[i + x * j for i in range(x)] for j in range(y)]
    down = on_groups(ring(y), columns, nranks=n, nchunks=n, scale=x)
    along = on_groups(ring(x), rows, nranks=n, nchunks=n, offsets=[x * j for j in range(y)])
    return then(down, along)
