"""The control memory that the ranks of a plan share: progress flags and byte counts.

The layout is that of `plan_lines` in native/src/plans.hpp.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.execution.transport import Array

LINE = 128
"""Bytes between two words: prefetchers fetch cache lines in pairs."""
_GATES = 3


class ByteCounts(NamedTuple):
    """Bytes that ranks have moved to and from each other's memory so far, as they counted them.

    ``loads[r, s]``: loaded by rank r from rank s's memory; ``stores[r, s]``: stored by r into s's.
    Each row is written by its rank alone.
    """

    loads: NDArray[np.uint64]
    stores: NDArray[np.uint64]

    def out(self, rank: int) -> int:
        """Bytes that left a rank's memory, or that the rank stored into others'."""
        return int(self.loads[:, rank].sum() + self.stores[rank].sum())

    def into(self, rank: int) -> int:
        """Bytes that came into a rank's memory, or that the rank loaded from others'."""
        return int(self.loads[rank].sum() + self.stores[:, rank].sum())


def _control_bytes(nranks: int) -> int:
    return ((1 + _GATES) * nranks + _GATES) * LINE


def _row_bytes(nranks: int) -> int:
    return -(-nranks * 8 // LINE) * LINE


def plan_bytes(nranks: int) -> int:
    """Bytes of a plan's lines."""
    return _control_bytes(nranks) + 2 * nranks * _row_bytes(nranks)


def traffic(lines: Array, nranks: int) -> ByteCounts:
    """The counts of a plan whose lines these are."""
    rows = lines[_control_bytes(nranks) : plan_bytes(nranks)].view(np.uint64)
    loads, stores = rows.reshape(2, nranks, -1)[:, :, :nranks]
    return ByteCounts(loads, stores)


def words(lines: Array) -> NDArray[np.uint64]:
    """The first word of every line of a control segment."""
    return lines[: len(lines) // LINE * LINE].view(np.uint64)[:: LINE // 8]
