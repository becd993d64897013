"""Two binary trees, each on half of the vector, pipelined (Sanders, Speck, Träff 2009; NCCL 2.4).

No rank has children in both trees, so every rank sends at most twice the vector, and receives at
most twice the vector, whatever the number of ranks.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from busbar.errors import Unsupported
from collectives.schedule.moves import moves
from collectives.schedule.passes import beside, pipeline, relabel, reverse, then
from collectives.schedule.schedule import Schedule, Step


def _edges(low: int, high: int, depth: int) -> Iterator[tuple[int, int, int]]:
    """The edges (child's depth, child, parent) of a full in-order tree over low … high.

    The number of ranks is odd. Even positions are leaves, odd positions have two children.
    """
    if low == high:
        return
    leaves = (high - low) // 2 + 1
    middle = low + 2 * ((leaves + 1) // 2) - 1
    for start, stop in ((low, middle - 1), (middle + 1, high)):
        yield depth + 1, _top(start, stop), middle
        yield from _edges(start, stop, depth + 1)


def _top(low: int, high: int) -> int:
    return low if low == high else low + 2 * (((high - low) // 2 + 2) // 2) - 1


def in_order_tree(n: int) -> list[tuple[int, int, int]]:
    """The edges (depth, child, parent) of a tree over 0 … n−1; only odd ranks have children.

    If n is even, the last rank is the root, and the full tree's top is its only child.
    """
    if n % 2:
        return list(_edges(0, n - 1, 0))
    return [(1, _top(0, n - 2), n - 1), *_edges(0, n - 2, 1)] if n else []


def other_tree(n: int) -> list[int]:
    """The ranks' order in the second tree, in which ranks with children become leaves.

    The order is mirrored if n is even, and shifted by one if n is odd. In both cases the ranks with
    children in the second tree are even.
    """
    return [n - 1 - i if n % 2 == 0 else (i - 1) % n for i in range(n)]


def downwards(n: int, edges: Sequence[tuple[int, int, int]]) -> Schedule:
    """Broadcast one chunk from a tree's root, each step one generation of children further.

    ``edges``: the tree, see `in_order_tree`.
    """
    depth = max((level for level, _, _ in edges), default=0)
    levels = [
        np.array([(c, p) for d, c, p in edges if d == level]) for level in range(1, depth + 1)
    ]
    return Schedule(n, 1, tuple(Step.fixed(moves(e[:, 1], e[:, 0], 0)) for e in levels))


def double_tree(n: int, segments: int = 8) -> Schedule:
    """2·depth + segments − 1 steps, depth ≤ ⌈lg n⌉ + 1; at most twice the vector out and in.

    Raises Unsupported for fewer than one segment.
    """
    if segments < 1:
        raise Unsupported(f"double_tree: segments={segments}; at least 1 is needed")
    down = downwards(n, in_order_tree(n))
    one = pipeline(then(reverse(down, reduce=True), down), segments)
    return beside(one, relabel(one, other_tree(n)))
