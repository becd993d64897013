"""Two binary trees below the root, each for half of the vector, pipelined (Sanders et al. 2009).

The trees are those of the double-tree all-reduce, over all ranks except the root, which sends to
the top of both trees.
"""

from busbar.errors import Unsupported
from collectives.algorithms.allreduce.double_tree import downwards, in_order_tree, other_tree
from collectives.schedule.passes import beside, pipeline, relabel, rotate
from collectives.schedule.schedule import Schedule


def _below(n: int) -> Schedule:
    """Broadcast of one chunk from rank n−1 down one tree over ranks 0 … n−2."""
    edges = [(depth + 1, child, parent) for depth, child, parent in in_order_tree(n - 1)]
    top = ({*range(n - 1)} - {child for _, child, _ in edges}).pop()
    return downwards(n, [*edges, (1, top, n - 1)])


def double_tree(n: int, root: int = 0, segments: int = 8) -> Schedule:
    """Depth + segments − 1 steps, depth ≤ ⌈lg n⌉ + 1; a rank sends and receives ≤ 1 vector.

    Two binary trees broadcast half of the vector each, in ``segments`` parts. Raises
    Unsupported for fewer than one segment.
    """
    if segments < 1:
        raise Unsupported(f"double_tree: segments={segments}; at least 1 is needed")
    if n == 1:
        return Schedule(1, 1, ())
    one = pipeline(_below(n), segments)
    both = beside(one, relabel(one, [*other_tree(n - 1), n - 1]))
    return rotate(both, (root + 1) % n)
