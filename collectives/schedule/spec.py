"""The requirements of a collective, as data: the parts of one vector that each rank has and needs.

All collectives have the same form. A vector consists of ``parts`` parts. Rank r's ``in`` holds the
parts ``inputs(r)``; its ``out`` must end holding the parts ``outputs(r)``, each the reduction over
*all* ranks whose ``in`` holds that part, each counted exactly once. All-reduce: every rank has and
needs everything. Broadcast: the root has everything, every rank needs it. All-gather: rank r has
part r, every rank needs all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

PartsOf = Callable[[int, int, int], Sequence[int]]

# nccl-tests rounds counts per rank down to a multiple of this many bytes.
ALIGN_BYTES = 16


class Unit(Enum):
    """The meaning of a collective's total n, which is nccl-tests' size column."""

    PART = "one part"
    RANKS = "as many parts as ranks, each rounded down to 16 bytes"
    NOTHING = "nothing: a part is one element, a token that only says that a rank was there"


class Size(NamedTuple):
    """A row of a sweep: elements of a part, and the values of the size and count columns.

    ``elements``: one number for all parts, or one per part.
    """

    elements: Any
    shown_bytes: int
    shown_count: int


@dataclass(frozen=True)
class Collective:
    """A collective's specification.

    ``parts(nranks)`` is the number of parts; ``inputs(nranks, rank, root)`` and ``outputs`` list
    the parts that a rank has and needs, in the order in which they lie in the buffer.
    ``bus_factor(nranks)`` turns algbw into busbw (NVIDIA's nccl-tests, doc/PERFORMANCE.md);
    ``alg_factor(nranks)`` is the share of the size that algbw counts, 1 except for the hypercube.
    ``unit``: the meaning of the collective's total. ``in_place``: whether ``in`` may alias ``out``,
    part by part. ``reduces``: whether an operation applies; ``idempotent``: only an operation that
    may take a contribution twice (min, max), so that outputs need each *at least* once. ``rooted``:
    whether a root applies. ``title`` is one line for lists.
    """

    name: str
    title: str
    parts: Callable[[int], int]
    inputs: PartsOf
    outputs: PartsOf
    bus_factor: Callable[[int], float]
    unit: Unit = Unit.PART
    alg_factor: Callable[[int], float] = lambda n: 1.0
    reduces: bool = False
    idempotent: bool = False
    rooted: bool = False
    in_place: bool = True

    def holders(self, nranks: int, root: int) -> list[list[int]]:
        """For each part the ranks whose ``in`` holds it: the contributions to its result."""
        holders: list[list[int]] = [[] for _ in range(self.parts(nranks))]
        for rank in range(nranks):
            for part in self.inputs(nranks, rank, root):
                holders[part].append(rank)
        return holders

    def partners(self, nranks: int, rank: int) -> tuple[int, int]:
        """(to, from): the rank that needs this rank's one part, and the rank whose part it needs.

        For collectives in which every rank has the part of its own number, and needs one.
        """
        wants = [self.outputs(nranks, other, 0)[0] for other in range(nranks)]
        return wants.index(rank), wants[rank]

    def total(self, nranks: int) -> int:
        """Parts in the collective's own total n, the unit of volumes; 1 if no data is moved."""
        return nranks if self.unit is Unit.RANKS else 1

    def size(self, nranks: int, nbytes: int, itemsize: int) -> Size:
        """A requested size as nccl-tests rounds it (``getCollByteCount`` of each test).

        The count is 0 if ``nbytes`` is too small for the ranks.
        """
        if self.unit is Unit.NOTHING:
            return Size(1, 0, 0)
        count = nbytes // itemsize
        if self.unit is Unit.RANKS:
            align = ALIGN_BYTES // itemsize
            count = count // nranks // align * align
        return Size(count, count * self.total(nranks) * itemsize, count)
