"""Double-tree reduce: the double-tree broadcast, reversed."""

from collectives.algorithms.broadcast.double_tree import double_tree as broadcast_double_tree
from collectives.schedule.passes import reverse
from collectives.schedule.schedule import Schedule


def double_tree(n: int, root: int = 0, segments: int = 8) -> Schedule:
    """Depth + segments − 1 steps; a rank sends and receives at most one vector.

    Raises Unsupported for fewer than one segment.
    """
    return reverse(broadcast_double_tree(n, root, segments), reduce=True)
