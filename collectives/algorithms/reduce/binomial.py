"""Binomial-tree reduce: the binomial broadcast, reversed."""

from collectives.algorithms.broadcast.binomial import binomial as broadcast_binomial
from collectives.schedule.passes import reverse
from collectives.schedule.schedule import Schedule


def binomial(n: int, root: int = 0) -> Schedule:
    """⌈lg n⌉ steps; the root receives and adds ⌈lg n⌉ vectors, every other rank sends one."""
    return reverse(broadcast_binomial(n, root), reduce=True)
