"""Counts for all-to-all-v: how many elements every rank sends to every other.

A counts matrix has a row for each sender and a column for each receiver. Flattened, it is the
argument of `Layout.bounds` for all-to-all's parts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from busbar.errors import Unsupported
from busbar.units import MOST_BYTES
from collectives.schedule.spec import ALIGN_BYTES

Counts = NDArray[np.int64]


def spread(nranks: int, total_bytes: int, itemsize: int, factor: float = 1.0) -> Counts:
    """Counts that grow with the distance between ranks, as nccl-tests' alltoallv generates them.

    Of the ``total_bytes`` that a rank sends, the rank d places on gets a share between 1/n
    (``factor`` 0) and d/(1 + … + n−1) (``factor`` 1), rounded down to 16 bytes. Shape
    (nranks, nranks), elements. Raises Unsupported for a factor outside 0 to 1.
    """
    if not 0 <= factor <= 1:
        raise Unsupported(f"spread {factor:g} is not between 0 (even) and 1 (by distance)")
    rank = np.arange(nranks)
    distance = (rank[None, :] - rank[:, None]) % nranks
    if nranks == 1:
        return np.array([[total_bytes // ALIGN_BYTES * ALIGN_BYTES // itemsize]])
    even = total_bytes / nranks
    by_distance = distance * float(total_bytes) / (nranks * (nranks - 1) // 2)
    nbytes = (1 - factor) * even + factor * by_distance
    return nbytes.astype(np.int64) // ALIGN_BYTES * ALIGN_BYTES // itemsize


def matrix(rows: ArrayLike, nranks: int) -> Counts:
    """Check a counts matrix: whole numbers, not negative, square, for at least ``nranks`` ranks.

    Of a larger matrix the first ranks' part is returned. Raises Unsupported with the problem.
    """
    table = np.asarray(rows)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise Unsupported(f"counts: a square matrix is needed, not one of shape {table.shape}")
    if len(table) < nranks:
        raise Unsupported(f"counts: a matrix for {len(table)} ranks does not serve {nranks}")
    if table.dtype.kind not in "iu" or (table < 0).any():
        raise Unsupported("counts: every count must be a whole number, 0 or more")
    if table.size and table.max() > MOST_BYTES // table.size:
        raise Unsupported(f"counts: {table.max()} elements are more than any memory has")
    return table[:nranks, :nranks].astype(np.int64)


def busiest(counts: Counts) -> int:
    """Elements that the busiest rank sends or receives, as in nccl-tests' size column."""
    return int(max(counts.sum(axis=0).max(), counts.sum(axis=1).max()))
