"""Pairwise all-to-all-v: the moves of the pairwise all-to-all; only the sizes differ."""

from collectives.algorithms.alltoall.pairwise import pairwise

__all__ = ["pairwise"]
