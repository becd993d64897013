"""Folds repeated measurements of a row into one row with all iterations, for long runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reports.readers.columns import Coded, Rows, Times
from reports.records.rows import Row

#: What makes two rows of one run the same measurement.
MEASURED = (
    "run", "collective", "algorithm", "transport", "ranks", "size", "count", "dtype", "op", "root",
    "placement", "statistic", "schedule", "skipped", "timing", "across", "checked",
)  # fmt: skip


def folded(rows: Sequence[Row]) -> Sequence[Row]:
    """A row for each thing that a run measured, in order of first appearance.

    Iterations are pooled and every statistic is that of all of them; counts are added up, the limit
    and the memory clock are the least, joules the mean. Only our own records, which have all their
    iterations, are folded; other rows come back as they are.
    """
    if not isinstance(rows, Rows) or not len(rows):
        return rows
    group = _groups(rows.columns)
    _, first, group = np.unique(group, return_index=True, return_inverse=True)
    if len(first) == len(rows):
        return rows
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    rank = np.argsort(first)  # groups in order of appearance
    together = rows.take(order)
    edges = together.times.edges[np.append(starts, len(order))]
    found = Rows(
        {name: _pooled(name, column, starts) for name, column in together.columns.items()},
        Times(together.times.values, edges),
    )
    return found.take(rank).again()


def _groups(columns: dict[str, Any]) -> NDArray[np.int64]:
    """A number a row, the same for rows of one key."""
    group = np.zeros(len(columns["line"]), np.int64)
    for name in MEASURED:
        column = columns[name]
        if isinstance(column, Coded):
            codes, kinds = column.codes, len(column.labels)
        else:
            values, codes = np.unique(column, return_inverse=True)
            kinds = len(values)
        if group.max(initial=0) >= np.iinfo(np.int64).max // max(1, kinds) - 1:
            group = np.unique(group, return_inverse=True)[1].astype(np.int64)
        group = group * kinds + codes
    return group


def _pooled(name: str, column: Any, starts: NDArray[np.intp]) -> Any:
    """A column with a value a group, from rows in order of their groups."""
    if name == "iterations":
        return np.add.reduceat(column, starts)
    if name == "wrong":
        known = np.array([-1 if value is None else value for value in column], np.int64)
        unknown = np.maximum.reduceat(known, starts) < 0
        sums = np.add.reduceat(np.maximum(known, 0), starts)
        return [None if no else total for no, total in zip(unknown, sums.tolist(), strict=True)]
    if name in ("limit_s", "clock_core_hz", "clock_memory_hz"):
        return np.fmin.reduceat(column, starts)
    if name == "energy_per_op_j":
        return np.add.reduceat(column, starts) / np.diff(np.append(starts, len(column)))
    if name == "per_rank_s":  # by iteration of one row, which pooled rows have not
        return [()] * len(starts)
    if isinstance(column, Coded):
        return Coded(column.codes[starts], column.labels)
    if isinstance(column, np.ndarray):
        return column[starts]
    return [column[i] for i in starts.tolist()]
