"""Many measurements as columns: the list of columns, figures of all rows at once, folding.

Reading, folding, DataFrames, Parquet, CSV and the check of texts all use the list `COLUMNS`. A
record of a million rows is read in seconds this way; with one object per row it takes a minute.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, pairwise
from operator import attrgetter
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple
from numpy.typing import NDArray

from busbar.statistics import intervals, mean_intervals
from reports.records.cores import energy, memory_clock
from reports.records.measurement import Measurement, Noise, Record, Run, grouped

Floats = NDArray[np.float64]
Kind = Literal["text", "whole", "count", "real", "truth", "series"]


def _statistic(timing: str) -> str:
    return "mean" if timing == "loop" else "median"


def _core_clock(noise: Noise | None) -> float | None:
    return min(noise.hz, default=None) if noise is not None else None


def _others_share(noise: Noise | None) -> float | None:
    return max(noise.others, default=None) if noise is not None else None


class Column(NamedTuple):
    """Description of a column. ``kind``: type of its values; counts may be None, reals NaN.

    ``pool``: how folding combines the values of repeated rows. ``key``: rows that differ in this
    column are different measurements. ``source`` and ``of``: the field of Busbar's records it comes
    from (if it has another name), and the function that converts it. ``own``: Busbar's records have
    it. ``shown``: it is a column of ``reports.load``.
    """

    kind: Kind
    pool: Literal["first", "sum", "least", "mean", "drop", "again"] = "first"
    key: bool = False
    source: str = ""
    of: Callable[[Any], Any] | None = None
    own: bool = True
    shown: bool = True


_TEXT, _KEY = Column("text"), Column("text", key=True)
_COUNT, _COUNT_KEY = Column("count"), Column("count", key=True)
_FIGURE, _OTHERS = Column("real", "again"), Column("real", own=False)

#: The columns, in the order of ``reports.load``; ``run`` and ``times_s`` are stored separately.
COLUMNS: Mapping[str, Column] = {
    "line": Column("whole"),
    "collective": _KEY,
    "size": _COUNT_KEY,
    "placement": _KEY,
    "algorithm": _KEY,
    "transport": _KEY,
    "ranks": _COUNT_KEY,
    "message": Column("count", source="size"),
    "count": _COUNT_KEY,
    "dtype": _KEY,
    "op": _KEY,
    "root": _COUNT_KEY,
    "statistic": Column("text", key=True, source="timing", of=_statistic),
    "time_s": _FIGURE,
    "low_s": _FIGURE,
    "high_s": _FIGURE,
    "min_s": _FIGURE,
    "max_s": _FIGURE,
    "p99_s": _FIGURE,
    "cv": _FIGURE,
    "algbw_bytes_per_s": _FIGURE,
    "busbw_bytes_per_s": _FIGURE,
    "wrong": Column("count", "sum"),
    "error": _OTHERS,
    "iterations": Column("count", "sum", source="iterations", of=lambda count: count or 0),
    "runs": Column("count", "sum"),
    "stopped": _TEXT,
    "skipped": _KEY,
    "times_s": Column("series", "again"),
    "limit_s": Column("real", "least"),
    "schedule": _KEY,
    "per_rank_s": Column("series", "drop"),
    "clock_core_hz": Column("real", "least", source="noise", of=_core_clock),
    "others_share": Column("real", "mean", source="noise", of=_others_share),
    "clock_memory_hz": Column("real", "least", source="gpus", of=memory_clock),
    "energy_per_op_j": Column("real", "mean", source="gpus", of=energy),
    "timing": _KEY,
    "across": _KEY,
    "checked": _KEY,
    "ranks_per_core": Column("real"),
    "worksharing": Column("truth"),
    "sent_bytes": _COUNT,
    "received_bytes": _COUNT,
    "total_bytes": _COUNT,
    "time_of": Column("text", own=False),
    "bandwidth_bytes_per_s": _OTHERS,
    "messages_per_s": _OTHERS,
    "overall_s": _OTHERS,
    "compute_s": _OTHERS,
    "overlap": _OTHERS,
    "bus_factor": Column("real", shown=False),
    "alg_factor": Column("real", shown=False),
}
#: The columns that come from a row's run, and the fields of `Run` for them.
RUN_COLUMNS: Mapping[str, str] = {
    name: "number" if name == "run" else name
    for name in ("source", "run", "format", "program", "version", "library", "hosts", "devices")
}
SHOWN: tuple[str, ...] = (*RUN_COLUMNS, *(n for n, column in COLUMNS.items() if column.shown))
#: Rows of one run that agree in these columns are the same measurement.
KEYS = tuple(name for name, column in COLUMNS.items() if column.key)


def of_kind(kind: Kind) -> tuple[str, ...]:
    """The names of the columns with values of this kind."""
    return tuple(name for name, column in COLUMNS.items() if column.kind == kind)


def as_mapping(row: Measurement) -> dict[str, Any]:
    """A row as a flat mapping with the keys ``SHOWN``."""
    of_run = {name: getattr(row.run, field) for name, field in RUN_COLUMNS.items()}
    return of_run | {name: getattr(row, name) for name in SHOWN[len(RUN_COLUMNS) :]}


# Fields that repeat from line to line (head) and the others (tail); see `Record`.
_FIELDS = Record.__struct_fields__
HEAD_FIELDS = _FIELDS[: _FIELDS.index("times_s")]
TAIL_FIELDS = _FIELDS[_FIELDS.index("times_s") :]
_OF_RECORD = {
    name: column.source or name
    for name, column in COLUMNS.items()
    if (column.source or name) in _FIELDS and name != "times_s"
}
_HEAD = tuple(name for name, field in _OF_RECORD.items() if field in HEAD_FIELDS)
_TAIL = tuple(name for name, field in _OF_RECORD.items() if field in TAIL_FIELDS)


_HEAD_OF = attrgetter(*dict.fromkeys(_OF_RECORD[name] for name in _HEAD))
#: The fields of a tail that are times: of iterations, by rank, by another reading, of warm-up.
SERIES = ("times_s", "per_rank_s", "also", "warm_up_s")


def tail_columns(tails: Sequence[Struct]) -> dict[str, Sequence[Any]]:
    """The fields of records, or of their tails, as columns with one value per record."""
    return dict(
        zip(tails[0].__struct_fields__, zip(*map(astuple, tails), strict=True), strict=True)
    )


def _value(name: str, record: Record) -> Any:
    column, value = COLUMNS[name], getattr(record, _OF_RECORD[name])
    return value if column.of is None else column.of(value)


@dataclass(frozen=True)
class Coded:
    """A column with few distinct values, as numbers: row i has the value ``labels[codes[i]]``."""

    codes: NDArray[np.int32]
    labels: Sequence[Any]

    @classmethod
    def of(cls, values: Iterable[Any]) -> Coded:
        """Make the column from one hashable value per row."""
        numbers: dict[Any, int] = {}
        codes = [numbers.setdefault(value, len(numbers)) for value in values]
        return cls(np.array(codes, np.int32), list(numbers))

    def tolist(self) -> list[Any]:
        """The values, row by row."""
        return [self.labels[code] for code in self.codes.tolist()]

    def distinct(self) -> Coded:
        """The same column without repeated labels."""
        once = Coded.of(self.labels)
        return Coded(once.codes[self.codes], once.labels)

    def reals(self) -> Floats:
        """The values as an array of floats; None becomes NaN."""
        return np.asarray(self.take(np.array(self.labels, np.float64)))

    def take(self, values: NDArray[np.generic]) -> Any:
        """Replace labels by ``values`` (one per label). Returns the value of each row."""
        if len(set(self.labels)) == 1:  # six times as fast
            return np.full(len(self.codes), values[0])
        return values[self.codes]


@dataclass(frozen=True)
class Times:
    """The iterations of many rows: row i has ``values[edges[i]:edges[i + 1]]``, in seconds."""

    values: Floats
    edges: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[float]]) -> Times:
        """Make the columns from the iterations of each row."""
        values = np.fromiter(chain.from_iterable(rows), np.float64)
        return cls.of_lengths(values, np.fromiter(map(len, rows), np.int64))

    @classmethod
    def of_lengths(cls, values: Floats, lengths: NDArray[np.int64]) -> Times:
        """Make the columns from all iterations, and the number of iterations of each row."""
        return cls(values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    def __len__(self) -> int:
        return len(self.edges) - 1

    def each(self) -> Iterator[Floats]:
        """The iterations of every row, without a copy."""
        lengths = np.unique(np.diff(self.edges))
        if len(lengths) == 1 and lengths[0]:  # the same result, twice as fast
            return iter(self.values.reshape(len(self), -1))
        return (self.values[a:b] for a, b in pairwise(self.edges.tolist()))

    def tolist(self) -> list[tuple[float, ...]]:
        """The iterations of every row as tuples, as in `Measurement.times_s`."""
        flat = self.values.tolist()
        return [tuple(flat[a:b]) for a, b in pairwise(self.edges.tolist())]

    def statistics(self, loop: NDArray[np.bool_]) -> dict[str, Floats]:
        """The statistics as columns by name; NaN if unknown.

        ``loop``: True for rows whose values are means of back-to-back iterations; only the mean of
        these and its interval are known for them. Rows of equal length are sorted together, in
        blocks to save memory.
        """
        names = ("time_s", "low_s", "high_s", "min_s", "max_s", "p99_s", "cv")
        columns = {name: np.full(len(self), np.nan) for name in names}
        lengths = np.diff(self.edges)
        for n in np.unique(lengths[lengths > 0]).tolist():
            alike = np.flatnonzero(lengths == n)
            for where in np.array_split(alike, -(-len(alike) * n // _AT_ONCE)):
                block = self.values[self.edges[where, None] + np.arange(n)]
                for name, values in _statistics(block, loop[where]).items():
                    columns[name][where] = values
        return columns


# Iterations whose statistics are computed together: about as many as fit into a core's cache.
_AT_ONCE = 1 << 17


def _statistics(block: Floats, loop: NDArray[np.bool_]) -> dict[str, Floats]:
    """The statistics of rows of equal length, by name of the column."""
    n = block.shape[1]
    of_means = mean_intervals(block[loop])
    low, high, block = intervals(block)
    mean = block.mean(axis=1)
    median = (block[:, (n - 1) // 2] + block[:, n // 2]) / 2
    with np.errstate(all="ignore"):
        cv = np.where(mean > 0, block.std(axis=1) / mean, np.nan)
    low[loop], high[loop] = of_means
    figures = {
        "min_s": block[:, 0],
        "max_s": block[:, -1],
        "p99_s": block[:, -(-n * 99 // 100) - 1],
        "cv": cv,
    }
    known = {name: np.where(loop, np.nan, values) for name, values in figures.items()}
    return {"time_s": np.where(loop, mean, median), "low_s": low, "high_s": high, **known}


def _figures(columns: Mapping[str, Any], times: Times) -> dict[str, Any]:
    """Compute time, interval and rates of rows from their iterations."""
    statistic = columns["statistic"]
    loop = np.array([name == "mean" for name in statistic.labels], bool)
    figures = times.statistics(loop[statistic.codes] if len(loop) else np.zeros(0, bool))
    size, alg, bus = (reals(columns[name]) for name in ("size", "alg_factor", "bus_factor"))
    with np.errstate(all="ignore"):
        algbw = alg * size / figures["time_s"]
    # A time of 0 gives no rate.
    algbw = np.where(figures["time_s"] > 0, algbw, np.nan)
    return {**figures, "algbw_bytes_per_s": algbw, "busbw_bytes_per_s": algbw * bus}


def reals(column: Any) -> Any:
    """A column of real numbers as an array; None becomes NaN."""
    return column.reals() if isinstance(column, Coded) else column


def counts(column: Any) -> Any:
    """A column of whole numbers as a masked array; None becomes masked."""
    if not isinstance(column, Coded):
        return column
    known = np.array([label or 0 for label in column.labels], np.int64)
    missing = np.array([label is None for label in column.labels], bool)
    return np.ma.array(column.take(known), mask=column.take(missing))


def completed(columns: Mapping[str, Any], times: Times) -> Measurements:
    """Make rows from the columns of records, and compute the derived figures.

    Columns that only other benchmarks have are empty.
    """
    known = {**columns, **_figures(columns, times)}
    return Measurements(known | absent(known, len(times)), times)


def absent(columns: Mapping[str, Any], count: int) -> dict[str, Coded]:
    """The columns that are missing in ``columns``, with ``count`` empty values each."""
    nothing, texts = np.zeros(count, np.int32), of_kind("text")
    names = (name for name in COLUMNS if name not in columns and name != "times_s")
    return {name: Coded(nothing, ["" if name in texts else None]) for name in names}


def measured(record: Record, run: Run, line: int = 0) -> Measurement:
    """Make a measurement from its record, and compute the derived figures."""
    fields = {name: getattr(record, name) for name in _FIELDS}
    values = {name: _value(name, record) for name in _OF_RECORD}
    figures = _figures(
        {name: Coded(np.zeros(1, np.int32), [value]) for name, value in values.items()},
        Times.of([record.times_s]),
    )
    known = {name: None if values_of[0] != values_of[0] else float(values_of[0])
             for name, values_of in figures.items()}  # fmt: skip
    return Measurement(**(fields | values | known), run=run, line=line)


class Measurements(Sequence[Measurement]):
    """A sequence of measurements that is stored as columns. Objects are made at first access.

    ``columns``: for ``run`` and every name in `COLUMNS` except ``times_s`` an array, a masked
    array, a list or a `Coded`. NaN in a column of floats becomes None in a row.
    """

    def __init__(self, columns: dict[str, Any], times: Times) -> None:
        self.columns, self.times = columns, times
        self._rows: list[Measurement] | None = None

    def __len__(self) -> int:
        return len(self.times)

    @overload
    def __getitem__(self, index: int) -> Measurement: ...
    @overload
    def __getitem__(self, index: slice) -> list[Measurement]: ...
    def __getitem__(self, index: int | slice) -> Measurement | list[Measurement]:
        """The row at an index, or the rows of a slice."""
        return self._all()[index]

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self._all())

    def _all(self) -> list[Measurement]:
        if self._rows is None:
            names = ("run", *(name for name in COLUMNS if name != "times_s"), "times_s")
            columns = [_listed(self.columns[name]) for name in names[:-1]]
            rows = zip(*columns, self.times.tolist(), strict=True)
            self._rows = [Measurement(**dict(zip(names, row, strict=True))) for row in rows]
        return self._rows

    def take(self, where: NDArray[np.intp]) -> Measurements:
        """The rows at the places ``where``, in that order."""
        columns = {name: _taken(column, where) for name, column in self.columns.items()}
        lengths = np.diff(self.times.edges)[where]
        times = Times.of_lengths(np.empty(0), lengths)
        starts = np.repeat(self.times.edges[:-1][where] - times.edges[:-1], lengths)
        values = self.times.values[np.arange(times.edges[-1]) + starts]
        return Measurements(columns, Times(values, times.edges))


def _listed(column: Any) -> list[Any]:
    """A column as a list of Python values, with None for NaN."""
    values = list(column.tolist() if hasattr(column, "tolist") else column)
    if isinstance(column, np.ndarray) and column.dtype.kind == "f":
        return [None if value != value else value for value in values]
    return values


def _taken(column: Any, where: NDArray[np.intp]) -> Any:
    if isinstance(column, Coded):
        return Coded(column.codes[where], column.labels)
    if isinstance(column, np.ndarray):
        return column[where]
    return [column[i] for i in where.tolist()]


class Builder:
    """Collects records and computes the figures of all of them together.

    A record has a head, which repeats, and a tail (`HEAD_FIELDS`, `TAIL_FIELDS`).
    """

    def __init__(self) -> None:
        self._heads: dict[tuple[Any, ...], int] = {}
        self._head_runs: list[Run] = []
        self._head_columns: dict[str, list[Any]] = {name: [] for name in _HEAD}
        self._waiting: list[tuple[int, int, Record]] = []
        # Numbers of heads, lines, columns of tails: arrays as growing bytes, or lists of series.
        self._known: dict[str, bytearray | list[Any]] = {
            name: [] if kind is object else bytearray() for name, kind in _KNOWN.items()
        }

    def head(self, record: Record, run: Run) -> int:
        """The number of a record's head, for `extend`; equal heads have the same number."""
        key = (id(run), _HEAD_OF(record))
        code = self._heads.get(key)
        if code is None:
            code = self._heads[key] = len(self._heads)
            self._head_runs.append(run)
            for name, column in self._head_columns.items():
                column.append(_value(name, record))
        return code

    def add(self, record: Record, run: Run, line: int) -> None:
        """Add a record."""
        self._waiting.append((self.head(record, run), line, record))
        if len(self._waiting) >= _TOGETHER:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            heads, lines, records = zip(*self._waiting, strict=True)
            self._waiting.clear()
            fields = tail_columns(records)
            times = np.fromiter(chain.from_iterable(fields["times_s"]), np.float64)
            self.extend(heads, lines, fields, times)

    def extend(
        self,
        heads: Sequence[int],
        lines: Sequence[int] | NDArray[np.int64],
        fields: Mapping[str, Sequence[Any]],
        times: Floats,
    ) -> None:
        """Add records, given by the numbers of their heads, their lines, and their `tail_columns`.

        ``times``: the iterations of all of them, concatenated.
        """
        self._flush()
        lengths = list(map(len, fields["times_s"]))
        new: dict[str, Any] = {"head": heads, "line": lines, "times_s": times, "length": lengths}
        new |= {name: _values(COLUMNS[name], fields[_OF_RECORD[name]]) for name in _TAIL}
        for name, values in new.items():
            known = self._known[name]
            array = isinstance(known, bytearray)
            known.extend(np.asarray(values, _KNOWN[name]).data if array else values)

    def rows(self) -> Measurements:
        """All records added so far, as rows. May be called only once."""
        self._flush()
        known: dict[str, Any] = {
            name: np.frombuffer(values, _KNOWN[name]) if isinstance(values, bytearray) else values
            for name, values in self._known.items()
        }
        codes = known.pop("head")
        times = Times.of_lengths(known.pop("times_s"), known.pop("length"))
        columns: dict[str, Any] = {
            name: Coded(codes, labels) for name, labels in self._head_columns.items()
        }
        columns["run"] = Coded(codes, self._head_runs)
        for name, column in known.items():
            counts_ = COLUMNS[name].kind == "count"
            columns[name] = np.ma.masked_less(column, 0) if counts_ else column
        return completed(columns, times)


def _values(column: Column, values: Sequence[Any]) -> Any:
    """The values of a column from those of a field; an unknown count becomes -1."""
    many = 1
    if values.count(values[0]) == len(values):  # fast path: rare fields are empty in most rows
        many, values = len(values), values[:1]
    if column.of is not None:
        values = list(map(column.of, values))
    if column.kind == "count" and None in values:
        values = [-1 if value is None else value for value in values]
    if column.kind == "series":
        return list(values) * many
    return np.repeat(np.array(values, _TYPES[column.kind]), many)


_TOGETHER = 4096
_TYPES: Mapping[str, type] = {"count": np.int64, "real": np.float64, "series": object}
_KNOWN: Mapping[str, type] = {
    "head": np.int32,
    "line": np.int64,
    "length": np.int64,
    "times_s": np.float64,
    **{name: _TYPES[COLUMNS[name].kind] for name in _TAIL},
}


def as_columns(measurements: Iterable[Measurement]) -> Measurements:
    """Busbar's own measurements as columns; lines are numbered from 1."""
    builder = Builder()
    for line, one in enumerate(measurements, 1):
        builder.add(one, one.run, line)
    return builder.rows()


def folded(rows: Sequence[Measurement]) -> Sequence[Measurement]:
    """Merge rows of a run with the same `KEYS` into one, in order of first appearance.

    Iterations are pooled and figures computed anew from all of them; `Column.pool` says how other
    columns are combined. Only Busbar's own records, which have all their iterations, are folded;
    other rows are returned as they are.
    """
    if not isinstance(rows, Measurements) or not len(rows):
        return rows
    _, first, group = np.unique(_groups(rows.columns), return_index=True, return_inverse=True)
    if len(first) == len(rows):
        return rows
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    together = rows.take(order)
    edges = together.times.edges[np.append(starts, len(order))]
    columns = {
        name: _pooled(COLUMNS[name].pool if name in COLUMNS else "first", column, starts)
        for name, column in together.columns.items()
    }
    pooled = Measurements(columns, Times(together.times.values, edges)).take(np.argsort(first))
    pooled.columns.update(_figures(pooled.columns, pooled.times))
    return pooled


class Repeat(NamedTuple):
    """Rows that repeat an earlier part's: the number of their part, the earlier run, how many."""

    part: int
    earlier: Run
    rows: int


_FIGURES = attrgetter(*KEYS, "time_s", "min_s", "max_s", "iterations")
# What Busbar's CSV has of a row, to the last digit. It has no start time and no number of a launch.
_OF_CSV = attrgetter(
    "collective", "algorithm", "transport", "ranks", "size", "dtype", "op", "root", "placement",
    "iterations", "schedule", "time_s", "low_s", "high_s",
)  # fmt: skip
_CSV_FORMAT = "busbar-csv"


def without_repeats(
    parts: Sequence[Sequence[Measurement]],
) -> tuple[list[Sequence[Measurement]], list[Repeat]]:
    """Remove what a part repeats of earlier ones, such as a copy of a file: a launch counts once.

    A row is a repeat if its run has the environment of an earlier part's run (of logs without a
    start time: the file and the table), and a row of that run has the same `KEYS` and figures.
    Busbar's CSV is one if other parts, earlier or later, have all its rows.
    """
    launches: dict[str, list[tuple[Run, Sequence[Measurement]]]] = {}
    kept: list[Sequence[Measurement]] = []
    repeats: list[Repeat] = []
    for number, part in enumerate(parts):
        runs = [(launch_name(run), run) for run in _runs(part)]
        earlier = {id(run): launches[name] for name, run in runs if name in launches}
        keep = part
        if earlier:  # only then rows are made of columns
            rows_of = {
                at: {_FIGURES(row) for run, rows in before for row in rows if row.run is run}
                for at, before in earlier.items()
            }
            repeated = [_FIGURES(row) in rows_of.get(id(row.run), ()) for row in part]
            counts = Counter(id(row.run) for row in compress(part, repeated))
            repeats += [Repeat(number, earlier[at][0][0], count) for at, count in counts.items()]
            keep = _where(part, np.flatnonzero(np.logical_not(repeated)))
        for name, run in runs:
            launches.setdefault(name, []).append((run, keep))
        kept.append(keep)
    return kept, repeats + _drop_csv(kept)


def _drop_csv(parts: list[Sequence[Measurement]]) -> list[Repeat]:
    """Empty the parts from CSV whose timed rows other parts have, too. Returns what was removed."""
    csv = [n for n, part in enumerate(parts) if _is_csv(part)]
    if not csv or len(csv) == len(parts):
        return []
    known = {_OF_CSV(row): row.run for n, part in enumerate(parts) if n not in csv for row in part}
    repeats = []
    for n in csv:
        runs = [known.get(_OF_CSV(row)) for row in parts[n] if row.time_s is not None]
        if runs and runs[0] is not None and None not in runs:
            repeats.append(Repeat(n, runs[0], len(parts[n])))
            parts[n] = []
    return repeats


def _is_csv(part: Sequence[Measurement]) -> bool:
    return any(run.format == _CSV_FORMAT for run in _runs(part))


def distinct(rows: Iterable[Measurement]) -> list[Measurement]:
    """The rows without repeats: no object twice, and no row of a launch that was read twice."""
    once = list({id(row): row for row in rows}.values())
    by_run = grouped(once, lambda row: id(row.run))
    kept = {id(row) for part in without_repeats(list(by_run.values()))[0] for row in part}
    return [row for row in once if id(row) in kept]


def _runs(rows: Sequence[Measurement]) -> Iterable[Run]:
    if isinstance(rows, Measurements):
        labels: Iterable[Run] = rows.columns["run"].labels
        return labels
    return {id(row.run): row.run for row in rows}.values()


def launch_name(run: Run) -> str:
    """A text that two runs share only if they are one launch."""
    if run.environment.get("started"):
        return json.dumps(run.environment, sort_keys=True)
    return f"{run.source} {run.number}"


def _where(rows: Sequence[Measurement], at: NDArray[np.intp]) -> Sequence[Measurement]:
    return rows.take(at) if isinstance(rows, Measurements) else [rows[n] for n in at.tolist()]


def _groups(columns: Mapping[str, Any]) -> NDArray[np.int64]:
    """A number for each row, equal for rows of the same run and the same `KEYS`."""
    group = np.zeros(len(columns["line"]), np.int64)
    for name in ("run", *KEYS):
        column = columns[name]
        if isinstance(column, Coded):
            labels = [id(run) for run in column.labels] if name == "run" else column.labels
            same = Coded(column.codes, labels).distinct()
            codes, kinds = same.codes, len(same.labels)
        else:
            values, inverse = np.unique(np.ma.filled(column, -1), return_inverse=True)
            codes, kinds = inverse.astype(np.int32), len(values)
        if group.max(initial=0) >= np.iinfo(np.int64).max // max(1, kinds) - 1:
            group = np.unique(group, return_inverse=True)[1].astype(np.int64)
        group = group * kinds + codes
    return group


def _pooled(pool: str, column: Any, starts: NDArray[np.intp]) -> Any:
    """Pool a column to one value per group; rows are sorted by group, ``starts`` are the firsts."""
    if pool == "drop":  # has a value per iteration of one row, which makes no sense when pooled
        return [()] * len(starts)
    if pool == "first":
        return _taken(column, starts)
    if pool == "sum":
        known = counts(column)
        unknown = np.logical_and.reduceat(np.ma.getmaskarray(known), starts)
        return np.ma.array(np.add.reduceat(np.ma.filled(known, 0), starts), mask=unknown)
    values = reals(column)
    if pool == "mean":
        return np.add.reduceat(values, starts) / np.diff(np.append(starts, len(values)))
    return np.fmin.reduceat(values, starts)
