"""Rows as a pandas DataFrame, with the columns and types of docs/reports.md, from any source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from busbar.errors import MissingLibrary
from reports.readers.columns import Coded, Rows, coded
from reports.records.rows import COLUMNS, KINDS, OF_RUN, Row, record

if TYPE_CHECKING:
    from pandas import DataFrame

_TUPLES = ("hosts", "devices")


def frame(rows: Sequence[Row]) -> DataFrame:
    """Rows as a DataFrame with the columns ``COLUMNS``; whole numbers are nullable integers.

    Raises MissingLibrary without pandas.
    """
    try:
        import pandas as pd
    except ImportError:
        raise MissingLibrary("pandas") from None
    if isinstance(rows, Rows):
        columns = _of_rows(rows)
    else:
        listed = [record(row) for row in rows]
        columns = {name: [row[name] for row in listed] for name in COLUMNS}
    made: DataFrame = pd.DataFrame(
        {name: _kind(name)(pd, columns[name]) for name in COLUMNS}, copy=False
    )
    return made


def _of_rows(rows: Rows) -> dict[str, Any]:
    """Columns of rows that are columns already."""
    runs: Coded = rows.columns["run"]
    of_run = {
        name: Coded(runs.codes, [getattr(run, OF_RUN[name]) for run in runs.labels])
        for name in OF_RUN
    }
    return {**rows.columns, "times_s": rows.times.each(), **of_run}


def _plain(kind: type, _: ModuleType, values: Any) -> Any:
    """Numbers and truths as numpy has them; None becomes NaN."""
    return np.array(values.tolist() if isinstance(values, Coded) else values, kind)


def _nullable(pd: ModuleType, values: Any) -> Any:
    missing = np.zeros(len(values), np.bool_)
    if not isinstance(values, np.ndarray):
        missing = np.array([value is None for value in values], np.bool_)
        values = np.array([value or 0 for value in values], np.int64)
    return pd.arrays.IntegerArray(values, missing)


def _texts(pd: ModuleType, values: Any) -> Any:
    """Pandas' own kind of text, made once for each different one."""
    found = values if isinstance(values, Coded) else coded(values)
    return pd.Series(["", *found.labels]).array.take(found.codes + 1)


def _tuples(_: ModuleType, values: Any) -> Any:
    found = values if isinstance(values, Coded) else coded(values)
    labels = np.empty(len(found.labels), object)
    labels[:] = found.labels
    return labels[found.codes]


def _arrays(_: ModuleType, values: Sequence[Any]) -> Any:
    empty = np.empty(0)
    made = (
        value if isinstance(value, np.ndarray) else np.array(value, np.float64) if value else empty
        for value in values
    )
    # Assigned at once, numpy would make a matrix of them.
    return np.fromiter(made, object, count=len(values))


_KINDS: Mapping[str, Callable[[ModuleType, Any], Any]] = {
    "str": _texts,
    "int": partial(_plain, np.int64),
    "int | None": _nullable,
    "float | None": partial(_plain, np.float64),
    "bool": partial(_plain, np.bool_),
}


def _kind(name: str) -> Callable[[ModuleType, Any], Any]:
    """The function that makes pandas' form of a column."""
    if name in OF_RUN:
        return _KINDS["int"] if name == "run" else _tuples if name in _TUPLES else _texts
    return _KINDS.get(KINDS[name], _arrays)
