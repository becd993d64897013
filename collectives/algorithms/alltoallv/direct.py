"""Direct all-to-all-v: the moves of the direct all-to-all; only the sizes differ."""

from collectives.algorithms.alltoall.direct import direct

__all__ = ["direct"]
