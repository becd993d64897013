"""All-to-all in groups of groups: parts first change group, then place inside the group."""

from collections.abc import Sequence

import numpy as np

from collectives.algorithms.allreduce.hierarchical import checked_dims
from collectives.schedule.moves import moves
from collectives.schedule.schedule import Schedule, Step


def hierarchical(n: int, dims: Sequence[int] | None = None) -> Schedule:
    """Σ(dᵢ−1) steps, from the largest groups inwards; Σ(dᵢ−1)/dᵢ of a rank's parts each way.

    ``dims``: sizes of the nested groups, innermost first; without it there are two as equal as
    possible. Raises Unsupported if the product of ``dims`` is not n.
    """
    sizes = checked_dims(n, dims)
    inner = [int(np.prod(sizes[:level])) for level in range(len(sizes))]
    source, goal = (ranks.ravel() for ranks in np.divmod(np.arange(n * n), n))

    def steps(level: int) -> list[Step]:
        """One step for each distance between groups of one dimension (``level``: its number)."""
        size, unit = sizes[level], inner[level]
        # The outer levels are done: there a part is at its destination.
        at = source % (unit * size) + goal // (unit * size) * (unit * size)
        apart = (goal // unit - source // unit) % size
        to = at + (goal // unit % size - at // unit % size) * unit
        order, edges = np.argsort(apart, kind="stable"), np.cumsum(np.bincount(apart))
        parts = np.split(order, edges[:-1])[1:]
        return [Step.fixed(moves(at[far], to[far], far)) for far in parts]

    levels = reversed(range(len(sizes)))
    return Schedule(n, n * n, tuple(step for level in levels for step in steps(level)))
