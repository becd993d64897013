"""Scatter, then direct all-gather: `scatter_allgather` in two steps, where memory is shared."""

from collectives.algorithms.allgather.direct import direct
from collectives.algorithms.scatter.flat import flat
from collectives.schedule.passes import rotate, then
from collectives.schedule.schedule import Schedule


def sharded(n: int, root: int = 0) -> Schedule:
    """2 steps; every rank serves one shard of the vector, which it has from the root, to all."""
    return rotate(then(flat(n), direct(n)), root)
