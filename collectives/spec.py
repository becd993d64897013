"""What a collective asks for, as data: which parts of one thought vector each rank has and wants.

Every collective here is the same sentence with other numbers. There is a vector of ``parts``
parts. Rank r's ``in`` holds the parts ``inputs(r)``; its ``out`` must end holding the parts
``outputs(r)``, each the reduction over *all* ranks whose ``in`` holds that part, each counted
exactly once. All-reduce: everyone has and wants everything. Broadcast: the root has everything,
everyone wants it. All-gather: rank r has part r, everyone wants all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Collective"]

PartsOf = Callable[[int, int, int], Sequence[int]]


@dataclass(frozen=True)
class Collective:
    """A collective's specification.

    ``parts(nranks)`` is the number of parts; ``inputs(nranks, rank, root)`` and ``outputs`` list
    the parts that a rank has and wants, in the order in which they lie in the buffer.
    ``bus_factor(nranks)`` turns algbw into busbw (NVIDIA's nccl-tests, doc/PERFORMANCE.md).
    ``in_place``: whether ``in`` may alias ``out``, part by part. ``reduces``: whether an operation
    applies. ``rooted``: whether a root applies. ``title`` is one line for lists.
    """

    name: str
    title: str
    parts: Callable[[int], int]
    inputs: PartsOf
    outputs: PartsOf
    bus_factor: Callable[[int], float]
    reduces: bool = False
    rooted: bool = False
    in_place: bool = True

    def holders(self, nranks: int, root: int) -> list[list[int]]:
        """For each part the ranks whose ``in`` holds it: the contributions that it must gain."""
        found: list[list[int]] = [[] for _ in range(self.parts(nranks))]
        for rank in range(nranks):
            for part in self.inputs(nranks, rank, root):
                found[part].append(rank)
        return found
