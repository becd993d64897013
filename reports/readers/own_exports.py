"""Read Busbar's own exports: CSV, and Parquet, which is also written here.

Parquet has every column of ``reports.load``, and the facts of runs as metadata. It is an export for
other tools (DuckDB, Spark, R) and loads fastest. It lacks the records' parameters and GPUs. The
complete records are the JSON lines, of which all formats can be read.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from busbar.errors import MissingLibrary, ReportError
from busbar.tables import unescape_cell
from busbar.terminal import make_printable, shorten
from reports.readers.gathered import Gathered
from reports.readers.upgrade import shared_work
from reports.records.measurement import FORMAT, Measurement, Reading, Run
from reports.records.table import (
    COLUMNS,
    Coded,
    Measurements,
    Times,
    absent,
    as_columns,
    counts,
    reals,
)

#: The columns: fields of a `Measurement`, except ``median_s`` and ``mean_s``. Files from before
#: format 3 end with ``schedule`` or earlier.
CSV = (
    "collective", "algorithm", "transport", "ranks", "size", "count", "dtype", "op", "root",
    "placement", "iterations", "median_s", "low_s", "high_s", "mean_s", "algbw_bytes_per_s",
    "busbw_bytes_per_s", "wrong", "stopped", "skipped", "limit_s", "schedule", "ranks_per_core",
    "worksharing", "sent_bytes", "received_bytes", "total_bytes", "launch",
)  # fmt: skip


def read_csv(source: str, text: str) -> Reading:
    """The rows of Busbar's CSV export, which has figures but no raw times."""
    runs: dict[str, Run] = {}
    gathered = Gathered(source)
    table = csv.DictReader(text.splitlines())
    while True:
        try:
            cells = next(table, None)
            if cells is None:
                break
            if None in cells.values():
                raise ValueError("it is cut")
            texts = {k: unescape_cell(v) for k, v in cells.items() if isinstance(v, str)}
            launch = texts.get("launch", "")
            run = runs.setdefault(launch, Run(source, len(runs), "busbar-csv", "busbar"))
            gathered.take(table.line_num, _csv_row(run, table.line_num, texts))
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            gathered.take(table.line_num, str(error))
    return gathered.close()


def _csv_row(run: Run, line: int, cells: Mapping[str, str]) -> Measurement:
    if cells["placement"] not in ("out", "in"):
        raise ValueError(f"placement {cells['placement'][:20]!r} is neither out nor in")
    known: dict[str, Any] = {
        name: _READ_CELL[COLUMNS[name].kind](name, cells[name])
        for name in CSV
        if name in cells and name in COLUMNS
    }
    if "worksharing" not in known:  # written before format 3
        what = (cells["transport"], cells["algorithm"], cells.get("schedule", ""))
        known["worksharing"] = shared_work(*what)
    time_s = _figure("median_s", cells["median_s"])
    known |= {"message": known["size"], "statistic": "median", "time_s": time_s}
    return Measurement(run=run, line=line, **known)


def _figure(name: str, text: str) -> float | None:
    value = float(text) if text else None
    if value is not None and not 0 <= value < inf:
        raise ValueError(f"{name} is no figure")
    return value


_READ_CELL: Mapping[str, Callable[[str, str], Any]] = {
    "text": lambda name, text: text,
    "count": lambda name, text: int(text) if text else None,
    "real": _figure,
    "truth": lambda name, text: text == "1",
}


MAGIC = b"PAR1"
#: The first format with these columns.
OLDEST = 3
_KEY = b"busbar"
_RUN = ("number", "format", "program", "version", "library", "hosts", "devices", "environment")
_STORED = {name: column.kind for name, column in COLUMNS.items() if column.own}


def library(place: str = "") -> ModuleType:
    """The module pyarrow. Raises MissingLibrary, naming the file, if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingLibrary("pyarrow", place) from None
    return pyarrow  # type: ignore[no-any-return]


def to_parquet(measurements: Iterable[Measurement]) -> bytes:
    """Measurements as a Parquet file, one row each. Raises MissingLibrary without pyarrow."""
    pa, rows = library(), as_columns(measurements)
    runs = rows.columns["run"]
    facts = [{name: getattr(run, name) for name in _RUN} for run in runs.labels]
    each, codes = _each_once(facts, runs.codes)
    arrays = {"run": pa.array(codes, pa.int32())}
    for name, kind in _STORED.items():
        if name != "times_s":
            arrays[name] = _array(pa, kind, rows.columns[name])
    edges = pa.array(rows.times.edges, pa.int64())
    arrays["times_s"] = pa.LargeListArray.from_arrays(edges, pa.array(rows.times.values))
    written = json.dumps({"format": FORMAT, "runs": each})
    table = pa.table(arrays).replace_schema_metadata({_KEY: written})
    file = io.BytesIO()
    pa.parquet.write_table(table, file)
    return file.getvalue()


def _each_once(
    facts: Sequence[dict[str, Any]], codes: NDArray[np.int32]
) -> tuple[list[dict[str, Any]], NDArray[np.int32]]:
    """Equal facts of runs as one, and the codes that refer to them.

    Rows are compared within a launch only if they share its run.
    """
    texts = [json.dumps(one, sort_keys=True) for one in facts]
    places = {text: at for at, text in enumerate(dict.fromkeys(texts))}
    new = np.array([places[text] for text in texts], np.int32)
    each = {places[text]: one for text, one in zip(texts, facts, strict=True)}
    return [each[at] for at in range(len(each))], new[codes] if len(facts) else codes


def _array(pa: ModuleType, kind: str, column: Any) -> Any:
    """A column as an Arrow array."""
    if kind == "text":
        same = column.distinct()
        labels = pa.array(list(same.labels), pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(same.codes, pa.int32()), labels)
    if kind in ("count", "whole"):
        known = counts(column)
        return pa.array(np.ma.getdata(known), pa.int64(), mask=np.ma.getmaskarray(known))
    if kind == "real":
        return pa.array(reals(column), pa.float64(), from_pandas=True)
    if kind == "truth":
        return pa.array(column.tolist(), pa.bool_())
    return pa.array(column, pa.list_(pa.list_(pa.float64())))


def read_parquet(source: str, data: bytes) -> Measurements:
    """The rows of a Parquet file. Raises ReportError if it is damaged or not made by Busbar."""
    pa = library()
    try:
        file = pa.parquet.ParquetFile(pa.BufferReader(data))
        facts = json.loads((file.schema_arrow.metadata or {}).get(_KEY, b"null"))
        form = facts.get("format") if isinstance(facts, dict) else None
        if form not in range(OLDEST, FORMAT + 1):
            raise ValueError(f"format {form!r:.9}: Parquet is read from {OLDEST} to {FORMAT}")
        return _rows(pa, file, source, list(facts["runs"]))
    except (
        pa.ArrowException, OSError, KeyError, ValueError, TypeError, IndexError, AttributeError,
        OverflowError, RecursionError,
    ) as error:  # fmt: skip
        why = make_printable(shorten(str(error), 80))
        text = f"{source}: no Parquet file that Busbar wrote, or damaged ({why})"
        raise ReportError(text) from None


def _run(source: str, facts: dict[str, Any]) -> Run:
    fields = {name: facts[name] for name in _RUN}
    tuples = {name: tuple(map(str, fields[name])) for name in ("hosts", "devices")}
    texts = (fields[name] for name in ("format", "program", "version", "library"))
    if not isinstance(fields["environment"], dict) or not all(isinstance(t, str) for t in texts):
        raise ValueError("what it says of a run is damaged")
    return Run(source=source, **{**fields, **tuples})


def _rows(pa: ModuleType, file: Any, source: str, facts: Sequence[dict[str, Any]]) -> Measurements:
    def column(name: str) -> Any:  # one at a time: together they take twice the memory
        chunks = file.read([name]).column(name)
        return chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()

    codes = column("run").to_numpy().astype(np.int32)
    if len(codes) and not 0 <= codes.min() <= codes.max() < len(facts):
        raise ValueError("a run that is not there")
    each, codes = _each_once(facts, codes)
    runs = [_run(source, one) for one in each]
    columns: dict[str, Any] = {"run": Coded(codes, runs)}
    for name, kind in _STORED.items():
        if name != "times_s" and name in file.schema_arrow.names:
            columns[name] = _column(pa, name, kind, column(name))
    lists = column("times_s")
    lengths = pa.compute.list_value_length(lists).to_numpy()
    times = Times.of_lengths(lists.flatten().to_numpy(), lengths)
    if not (np.isfinite(times.values) & (times.values >= 0)).all():
        raise ValueError("times that are no seconds")
    ranks = zip(lengths.tolist(), columns["per_rank_s"], strict=True)
    if any(every and {n} != set(map(len, every)) for n, every in ranks):
        raise ValueError("a rank has another number of times than its row")
    if not set(columns["placement"].labels) <= {"out", "in"}:
        raise ValueError("a placement that is neither out nor in")
    return Measurements(columns | absent(columns, len(times)), times)


def _column(pa: ModuleType, name: str, kind: str, array: Any) -> Any:
    """A column from an Arrow array. Raises ValueError if its type is wrong."""
    if kind == "text":
        array = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
        labels = array.dictionary.to_pylist()
        codes = array.indices.to_numpy().astype(np.int32)
        if not all(isinstance(label, str) for label in labels):
            raise ValueError(f"{name} that is no text")
        if len(codes) and not 0 <= codes.min() <= codes.max() < len(labels):
            raise ValueError(f"{name} that is not there")
        return Coded(codes, labels)
    if kind == "truth":
        return Coded(array.to_numpy(zero_copy_only=False).astype(np.int32), [False, True])
    if kind == "series":
        if not len(array.flatten()):
            return [()] * len(array)
        return [tuple(map(tuple, one or ())) for one in array.to_pylist()]
    missing = array.is_null().to_numpy(zero_copy_only=False)
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    if values.dtype.kind != ("f" if kind == "real" else "i"):
        raise ValueError(f"{name} that is no number")
    if kind == "real":
        return np.where(missing, np.nan, values) if missing.any() else values
    return np.ma.array(values, mask=missing) if missing.any() else values
