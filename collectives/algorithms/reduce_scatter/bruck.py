"""Bruck's reduce-scatter: the Bruck all-gather, reversed."""

from collectives.algorithms.allgather.bruck import bruck as allgather_bruck
from collectives.schedule.passes import reverse
from collectives.schedule.schedule import Schedule


def bruck(n: int) -> Schedule:
    """⌈lg n⌉ steps; (n−1)/n of the vector each way."""
    return reverse(allgather_bruck(n), reduce=True)
