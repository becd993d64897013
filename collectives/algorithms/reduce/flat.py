"""Flat reduce: the flat broadcast, reversed."""

from collectives.algorithms.broadcast.flat import flat as broadcast_flat
from collectives.schedule.passes import reverse
from collectives.schedule.schedule import Schedule


def flat(n: int, root: int = 0) -> Schedule:
    """1 step; the root receives and adds n−1 vectors, every other rank sends one."""
    return reverse(broadcast_flat(n, root), reduce=True)
