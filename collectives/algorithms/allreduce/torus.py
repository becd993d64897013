"""2-D torus (Mikami et al. 2018): rings along the rows, then along the columns, then rows again."""

from collections.abc import Sequence

from busbar.errors import Unsupported
from collectives.algorithms.allreduce.hierarchical import checked_dims, hierarchical
from collectives.schedule.schedule import Schedule


def checked_grid(n: int, grid: Sequence[int] | None) -> tuple[int, int]:
    """The sides X, Y of a torus of n ranks; without ``grid`` sides that are as equal as possible.

    Raises Unsupported if the grid does not have n ranks, or if n is a prime above 3.
    """
    if grid is None and n > 3 and all(n % d for d in range(2, int(n**0.5) + 1)):
        raise Unsupported(f"torus: {n} ranks form no grid but 1x{n}; use ring, or another number")
    if grid is not None and (len(grid) != 2 or grid[0] * grid[1] != n or min(grid) < 1):
        shape = "x".join(map(str, grid))
        sides = "x".join(map(str, checked_dims(n, None)))
        raise Unsupported(f"torus: a {shape} grid does not fit {n} ranks, but {sides} does")
    x, y = checked_dims(n, grid)
    return x, y


def torus(n: int, grid: Sequence[int] | None = None) -> Schedule:
    """X×Y ranks: 2(X−1) + 2(Y−1) steps; 2(n−1)/n of the vector each way.

    Rank r is in column r mod X and row r div X. Raises Unsupported as `checked_grid` does.
    """
    return hierarchical(n, checked_grid(n, grid))
