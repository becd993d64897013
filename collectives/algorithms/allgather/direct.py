"""Direct all-gather: every rank sends its chunk to every other rank, at once."""

from collectives.algorithms.reduce_scatter.direct import direct as reduce_scatter_direct
from collectives.schedule.passes import reverse
from collectives.schedule.schedule import Schedule


def direct(n: int) -> Schedule:
    """1 step; (n−1)/n of the vector each way."""
    return reverse(reduce_scatter_direct(n))
