"""All-to-all level by level: parts first change group, then place inside the group."""

from collections.abc import Sequence

import numpy as np

from collectives.algorithms.allreduce.hierarchical import checked_dims
from collectives.moves import moves
from collectives.schedule import Schedule, Step


def hierarchical(n: int, dims: Sequence[int] | None = None) -> Schedule:
    """Σ(dᵢ−1) steps, from the outermost level inwards; Σ(dᵢ−1)/dᵢ of a rank's parts each way.

    ``dims`` from the innermost level outwards; without it there are two levels, as nearly square as
    n allows. Raises Unsupported when the product of ``dims`` is not n.
    """
    sizes = checked_dims(n, dims)
    inner = [int(np.prod(sizes[:level])) for level in range(len(sizes))]
    source, goal = (ranks.ravel() for ranks in np.divmod(np.arange(n * n), n))

    def step(level: int, distance: int) -> Step:
        size, unit = sizes[level], inner[level]
        # Levels further out are done: there a part is where it wants to be.
        at = source % (unit * size) + goal // (unit * size) * (unit * size)
        apart = (goal // unit - source // unit) % size
        far = np.flatnonzero(apart == distance)
        to = at + (goal // unit % size - at // unit % size) * unit
        return Step.fixed(moves(at[far], to[far], far))

    steps = [
        step(level, distance)
        for level in reversed(range(len(sizes)))
        for distance in range(1, sizes[level])
    ]
    return Schedule(n, n * n, tuple(steps))
