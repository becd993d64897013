"""Exchanges along the dimensions of a hypercube: the recursive doubling all-gather."""

from collectives.algorithms.allgather.doubling import doubling

__all__ = ["doubling"]
