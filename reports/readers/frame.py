"""Rows of any source as a pandas DataFrame, with the columns and types of docs/logs.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from busbar.errors import MissingLibrary
from reports.records.measurement import Measurement
from reports.records.table import (
    COLUMNS,
    RUN_COLUMNS,
    SHOWN,
    Coded,
    Kind,
    Measurements,
    Times,
    as_mapping,
    counts,
    reals,
)

if TYPE_CHECKING:
    from pandas import DataFrame

_TUPLES = ("hosts", "devices")
# A column with a single text is made of copies of a part with this many rows.
_PART = 1 << 14


def frame(rows: Sequence[Measurement], *, spent: bool = False) -> DataFrame:
    """Rows as a DataFrame with the columns ``SHOWN``; whole numbers are nullable integers.

    It may share arrays with ``rows``. ``spent``: nobody uses ``rows`` afterwards, so that each of
    its columns can be freed once the column's pandas array has been made. Raises MissingLibrary
    without pandas.
    """
    try:
        import pandas as pd
    except ImportError:
        raise MissingLibrary("pandas") from None
    if isinstance(rows, Measurements):
        runs: Coded = rows.columns["run"]
        columns = rows.columns if spent else dict(rows.columns)
        for name, field in RUN_COLUMNS.items():
            columns[name] = Coded(runs.codes, [getattr(run, field) for run in runs.labels])
        columns["times_s"] = rows.times
    else:
        listed = [as_mapping(row) for row in rows]
        columns = {name: [row[name] for row in listed] for name in SHOWN}
    table: DataFrame = pd.DataFrame(
        {name: _form(name)(pd, columns.pop(name)) for name in SHOWN}, copy=False
    )
    return table


def _whole(_: ModuleType, values: Any) -> Any:
    whole = np.asarray(values.labels if isinstance(values, Coded) else values, np.int64)
    return values.take(whole) if isinstance(values, Coded) else whole


def _counts(pd: ModuleType, values: Any) -> Any:
    known = counts(values if isinstance(values, np.ndarray) else _coded(values))
    return pd.arrays.IntegerArray(np.ma.getdata(known), np.ma.getmaskarray(known))


def _coded(values: Any) -> Coded:
    return values if isinstance(values, Coded) else Coded.of(values)


def _texts(pd: ModuleType, values: Any) -> Any:
    """A pandas text array; each distinct text is converted once.

    Parts of a column with a single text share memory if pandas supports this.
    """
    column = _coded(values)
    texts, count = pd.Series(["", *column.labels]).array, len(column.codes)
    if len(set(column.labels)) != 1 or count <= _PART:
        return texts.take(column.codes + 1)
    part = pd.Series(texts.take(np.ones(_PART, np.int32)))
    while len(part) < count:
        part = pd.concat([part, part], ignore_index=True)
    return part.array[:count]


def _tuples(_: ModuleType, values: Any) -> Any:
    column = _coded(values)
    labels = np.empty(len(column.labels), object)
    labels[:] = column.labels
    return labels[column.codes]


def _arrays(_: ModuleType, values: Times | Sequence[Any]) -> Any:
    empty = np.empty(0)
    arrays: Iterator[Any]
    if isinstance(values, Times):
        arrays = values.each()
    elif any(values):
        arrays = (np.array(value, np.float64) if value else empty for value in values)
    else:
        arrays = repeat(empty, len(values))
    # Assigned in one step, numpy would make a matrix of them.
    return np.fromiter(arrays, object, count=len(values))


_FORMS: Mapping[Kind, Callable[[ModuleType, Any], Any]] = {
    "text": _texts,
    "whole": _whole,
    "count": _counts,
    "real": lambda _, values: np.asarray(reals(values), np.float64),
    "truth": lambda _, values: (
        values.take(np.array(values.labels, bool)) if isinstance(values, Coded) else values
    ),
    "series": _arrays,
}


def _form(name: str) -> Callable[[ModuleType, Any], Any]:
    """The function that converts a column to a pandas array."""
    if name in RUN_COLUMNS:
        return _whole if name == "run" else _tuples if name in _TUPLES else _texts
    return _FORMS[COLUMNS[name].kind]
