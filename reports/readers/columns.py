"""Many rows of our own records at once: fields as columns, statistics computed for all together.

A record of a million rows is read in seconds this way; one `Row` at a time would take a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain, pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from busbar.statistics import intervals
from reports.records.rows import OTHERS, TEXTS, Row

Floats = NDArray[np.float64]
_FIELDS = tuple(f.name for f in fields(Row))
_STATISTICS = ("low_s", "high_s", "min_s", "max_s", "p99_s", "cv")


@dataclass(frozen=True)
class Coded:
    """A column of few different values: row i has ``labels[codes[i]]``."""

    codes: NDArray[np.intp]
    labels: Sequence[Any]

    def tolist(self) -> list[Any]:
        """The values, row by row."""
        return [self.labels[code] for code in self.codes.tolist()]


@dataclass(frozen=True)
class Times:
    """The iterations of many rows: row i has ``values[edges[i]:edges[i + 1]]``, in seconds."""

    values: Floats
    edges: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[float]]) -> Times:
        """Make it from the iterations of each row."""
        edges = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
        flat = chain.from_iterable(rows)
        return cls(np.fromiter(flat, np.float64, count=int(edges[-1])), edges)

    def __len__(self) -> int:
        return len(self.edges) - 1

    def each(self) -> list[Floats]:
        """The iterations of every row, without a copy."""
        ends = self.edges.tolist()
        return [self.values[a:b] for a, b in pairwise(ends)]

    def tolist(self) -> list[tuple[float, ...]]:
        """The iterations of every row as a `Row` has them."""
        flat, ends = self.values.tolist(), self.edges.tolist()
        return [tuple(flat[a:b]) for a, b in pairwise(ends)]

    def statistics(self, loop: NDArray[np.bool_]) -> dict[str, Floats]:
        """Columns by name, NaN where unknown: what a `Row` says of its iterations.

        ``loop``: rows whose value is a mean of iterations back to back, of which no more is known
        than that mean. Rows of equal length are sorted together.
        """
        lengths = np.diff(self.edges)
        found = {name: np.full(len(self), np.nan) for name in ("time_s", *_STATISTICS)}
        for n in np.unique(lengths[lengths > 0]).tolist():
            where = np.flatnonzero(lengths == n)
            block = self.values[self.edges[where, None] + np.arange(n)]
            ends = intervals(block)
            block = np.sort(block, axis=1)
            mean = block.mean(axis=1)
            median = (block[:, (n - 1) // 2] + block[:, n // 2]) / 2
            found["time_s"][where] = np.where(loop[where], mean, median)
            with np.errstate(all="ignore"):
                cv = np.where(mean > 0, block.std(axis=1) / mean, np.nan)
            columns = {
                "min_s": block[:, 0],
                "max_s": block[:, -1],
                "p99_s": block[:, -(-n * 99 // 100) - 1],
                "cv": cv,
            }
            columns |= dict(zip(("low_s", "high_s"), ends, strict=True))
            for name, values in columns.items():
                found[name][where] = np.where(loop[where], np.nan, values)
        return found


class Rows(Sequence[Row]):
    """Rows that are kept as columns and made into `Row` objects when somebody asks for one.

    ``columns``: for every field of `Row` but ``times_s`` an array, a list or a `Coded`; NaN in a
    column of floats is what a row calls None. ``times``: the iterations.
    """

    def __init__(self, columns: dict[str, Any], times: Times) -> None:
        self.columns, self.times = columns, times
        self._made: list[Row] | None = None

    def __len__(self) -> int:
        return len(self.times)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """A row, or several."""
        return self._all()[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._all())

    def _all(self) -> list[Row]:
        if self._made is None:
            columns = [_listed(self.columns.get(name)) for name in _FIELDS if name != "times_s"]
            columns.insert(_FIELDS.index("times_s"), self.times.tolist())
            self._made = [Row(*values) for values in zip(*columns, strict=True)]
        return self._made

    def take(self, where: NDArray[np.intp]) -> Rows:
        """Some of the rows, in that order."""
        columns = {name: _taken(column, where) for name, column in self.columns.items()}
        lengths = np.diff(self.times.edges)[where]
        edges = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        at = np.arange(edges[-1]) + np.repeat(self.times.edges[:-1][where] - edges[:-1], lengths)
        return Rows(columns, Times(self.times.values[at], edges))

    def again(self) -> Rows:
        """The same rows with their statistics worked out from their times once more."""
        return finished(self.columns, self.times)


def _listed(column: Any) -> list[Any]:
    """A column as what a row has: Python's own values, None for NaN."""
    if isinstance(column, np.ndarray):
        found = column.tolist()
        if column.dtype.kind != "f":
            return list(found)
        return [None if value != value else value for value in found]
    return list(column.tolist()) if isinstance(column, Coded) else list(column)


def _taken(column: Any, where: NDArray[np.intp]) -> Any:
    if isinstance(column, Coded):
        return Coded(column.codes[where], column.labels)
    if isinstance(column, np.ndarray):
        return column[where]
    return [column[i] for i in where.tolist()]


def _figures(columns: dict[str, Any], times: Times) -> dict[str, Any]:
    """Time, interval and rates of rows from their iterations."""
    loop = np.array([name == "mean" for name in columns["statistic"].labels])
    found = times.statistics(loop[columns["statistic"].codes])
    with np.errstate(all="ignore"):
        algbw = columns["alg_factor"] * columns["size"] / found["time_s"]
    # As a time of nothing is no rate, whatever was moved in it.
    algbw = np.where(found["time_s"] > 0, algbw, np.nan)
    rates = {
        "algbw_bytes_per_s": algbw,
        "busbw_bytes_per_s": algbw * columns["bus_factor"],
    }
    return {**found, **rates}


#: What a placement of a record says, in order: see `rows_of`.
PLACED = (
    "run", "line", "head", "placement", "statistic", "iterations", "stopped", "wrong", "skipped",
    "timing", "across", "checked", "limit_s", "per_rank_s", "clock_core_hz", "clock_memory_hz",
    "energy_per_op_j", "sent_bytes", "received_bytes", "total_bytes",
)  # fmt: skip
#: What a record says for both of its placements, in order.
HEAD = (
    "collective", "algorithm", "transport", "ranks", "size", "count", "dtype", "op", "root",
    "bus_factor", "alg_factor", "schedule", "ranks_per_core", "worksharing",
)  # fmt: skip
#: Of these, what is a number that need not be whole.
REAL = ("bus_factor", "alg_factor", "ranks_per_core")
_CODED = ("placement", "statistic", "stopped", "skipped", "timing", "across", "checked")
_FLOATS = ("limit_s", "clock_core_hz", "clock_memory_hz", "energy_per_op_j")
_WHOLE = ("ranks", "size", "count", "root")
_COUNTS = ("wrong", "sent_bytes", "received_bytes", "total_bytes")


def rows_of(
    placed: Sequence[tuple[Any, ...]], heads: Sequence[tuple[Any, ...]], times: Times
) -> Rows:
    """Rows from tuples of ``PLACED``: ``run`` is a `Run`, ``head`` a number in ``heads``."""
    by_name = dict(
        zip(PLACED, zip(*placed, strict=True) if placed else [()] * len(PLACED), strict=True)
    )
    runs = list({id(run): run for run in by_name["run"]}.values())
    number = {id(run): n for n, run in enumerate(runs)}
    codes = np.array([number[id(run)] for run in by_name["run"]], np.intp)
    columns: dict[str, Any] = {"run": Coded(codes, runs)}
    columns["line"] = np.array(by_name["line"], np.int64)
    head = np.array(by_name["head"], np.intp)
    for name, values in zip(
        HEAD, zip(*heads, strict=True) if heads else [()] * len(HEAD), strict=True
    ):
        kind: Any = np.int64 if name in _WHOLE else np.float64 if name in REAL else None
        columns[name] = Coded(head, list(values)) if kind is None else np.array(values, kind)[head]
    columns |= {name: coded(by_name[name]) for name in _CODED}
    columns |= {name: np.array(by_name[name], np.float64) for name in _FLOATS}
    columns["iterations"] = np.array(by_name["iterations"], np.int64)
    columns |= {name: list(by_name[name]) for name in (*_COUNTS, "per_rank_s")}
    columns["ranks_per_core"] = known(columns["ranks_per_core"])
    return finished(columns, times)


def known(per_core: Floats) -> Floats:
    """Ranks per core of records as a column: the 0.0 of a record is unknown."""
    return np.where(per_core > 0, per_core, np.nan)


def finished(columns: dict[str, Any], times: Times) -> Rows:
    """Rows from the columns of what records say, with those that follow from it."""
    columns = {**columns, "message": columns["size"], **silent(len(times))}
    return Rows(columns | _figures(columns, times), times)


def silent(count: int) -> dict[str, Any]:
    """The columns that only other benchmarks fill, for ``count`` rows of our records."""
    nothing = Coded(np.zeros(count, np.intp), [""])
    return {n: nothing if n in TEXTS else np.full(count, np.nan) for n in OTHERS}


def coded(values: Iterable[Any]) -> Coded:
    """A column of few different values, which can be keys."""
    listed = list(values)
    labels = list(dict.fromkeys(listed))
    number = {label: n for n, label in enumerate(labels)}
    return Coded(np.array([number[value] for value in listed], np.intp), labels)
