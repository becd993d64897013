"""Records as Parquet: every column of ``reports.load``, and what runs say once as metadata.

It is an export for other tools (DuckDB, Spark, R) and loads fastest. It lacks the records'
parameters and GPUs; the JSON lines are the record, of which every format is read.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from busbar.errors import MissingLibrary, ReportError
from busbar.terminal import make_printable
from reports.readers import own
from reports.readers.columns import Coded, Rows, Times, silent
from reports.readers.upgrade import OLD
from reports.records.record import FORMAT, Result
from reports.records.rows import COUNTS, FIGURES, OTHERS, TEXTS, Run

MAGIC = b"PAR1"
_KEY = b"busbar"
_RUN = ("number", "format", "program", "version", "library", "hosts", "devices", "environment")
# What every record of ours has; of the others some are silent.
_WHOLE = ("line", "size", "message", "ranks", "count", "root", "iterations")
_COUNTS = tuple(name for name in COUNTS if name not in _WHOLE)
_FLOATS = (*(name for name in FIGURES if name not in OTHERS), "bus_factor", "alg_factor")
_TEXTS = tuple(name for name in TEXTS if name not in OTHERS)


def library(place: str = "") -> ModuleType:
    """Pyarrow. Raises MissingLibrary, with the file that it is for, where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingLibrary("pyarrow", place) from None
    return pyarrow  # type: ignore[no-any-return]


def to_parquet(results: Sequence[Result]) -> bytes:
    """A row a placement. Raises MissingLibrary without pyarrow."""
    pa, rows = library(), own.rows(results)
    columns, runs = rows.columns, rows.columns["run"]
    made = {"run": pa.array(runs.codes, pa.int32())}
    for name in _TEXTS:
        codes = pa.array(columns[name].codes, pa.int32())
        labels = pa.array(list(columns[name].labels), pa.string())
        made[name] = pa.DictionaryArray.from_arrays(codes, labels)
    made |= {name: pa.array(columns[name], pa.int64()) for name in _WHOLE}
    made |= {name: pa.array(columns[name], pa.float64(), from_pandas=True) for name in _FLOATS}
    made |= {name: pa.array(list(columns[name]), pa.int64()) for name in _COUNTS}
    made["worksharing"] = pa.array(columns["worksharing"].tolist(), pa.bool_())
    edges = pa.array(rows.times.edges, pa.int64())
    made["times_s"] = pa.LargeListArray.from_arrays(edges, pa.array(rows.times.values))
    made["per_rank_s"] = pa.array(columns["per_rank_s"], pa.list_(pa.list_(pa.float64())))
    said = {
        "format": FORMAT,
        "runs": [{name: getattr(run, name) for name in _RUN} for run in runs.labels],
    }
    table = pa.table(made).replace_schema_metadata({_KEY: json.dumps(said)})
    file = io.BytesIO()
    pa.parquet.write_table(table, file)
    return file.getvalue()


def read(source: str, data: bytes) -> Rows:
    """The rows of such a file. Raises ReportError when it is damaged, or not one of ours."""
    pa = library()
    try:
        table = pa.parquet.read_table(pa.BufferReader(data))
        said = json.loads((table.schema.metadata or {}).get(_KEY, b"null"))
        form = said.get("format") if isinstance(said, dict) else None
        if form not in range(OLD + 1, FORMAT + 1):
            raise ValueError(f"format {form!r:.9}: Parquet is read from {OLD + 1} to {FORMAT}")
        runs = [_run(source, one) for one in said["runs"]]
        return _rows(pa, table.combine_chunks(), runs)
    except (
        pa.ArrowException, OSError, KeyError, ValueError, TypeError, IndexError, AttributeError,
        OverflowError, RecursionError,
    ) as error:  # fmt: skip
        why = make_printable(str(error)[:80])
        text = f"{source}: no Parquet file that Busbar wrote, or damaged ({why})"
        raise ReportError(text) from None


def _run(source: str, said: dict[str, Any]) -> Run:
    fields = {name: said[name] for name in _RUN}
    tuples = {name: tuple(map(str, fields[name])) for name in ("hosts", "devices")}
    texts = (fields[name] for name in ("format", "program", "version", "library"))
    if not isinstance(fields["environment"], dict) or not all(isinstance(t, str) for t in texts):
        raise ValueError("what it says of a run is damaged")
    return Run(source=source, **{**fields, **tuples})


def _rows(pa: ModuleType, table: Any, runs: list[Run]) -> Rows:
    def column(name: str) -> Any:
        found = table.column(name)
        return found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()

    def coded(name: str) -> Coded:
        found = column(name)
        if not pa.types.is_dictionary(found.type):
            found = found.dictionary_encode()
        labels = found.dictionary.to_pylist()
        codes = found.indices.to_numpy().astype(np.intp)
        if not all(isinstance(label, str) for label in labels):
            raise ValueError(f"{name} that is no text")
        if len(codes) and not 0 <= codes.min() <= codes.max() < len(labels):
            raise ValueError(f"{name} that is not there")
        return Coded(codes, labels)

    codes = column("run").to_numpy().astype(np.intp)
    if len(codes) and not 0 <= codes.min() <= codes.max() < len(runs):
        raise ValueError("a run that is not there")
    columns: dict[str, Any] = {"run": Coded(codes, runs)}
    columns |= {name: coded(name) for name in _TEXTS}
    columns |= {name: column(name).to_numpy() for name in _WHOLE}
    columns |= {name: column(name).to_numpy(zero_copy_only=False) for name in _FLOATS}
    kinds = {name: columns[name].dtype.kind for name in (*_WHOLE, *_FLOATS)}
    odd = next((n for n, kind in kinds.items() if kind != ("i" if n in _WHOLE else "f")), None)
    if odd is not None:
        raise ValueError(f"{odd} that is no number")
    lists = column("times_s")
    for name in _COUNTS:
        counts = column(name)
        columns[name] = counts.to_pylist() if counts.null_count else counts.to_numpy()
    shared = column("worksharing").to_numpy(zero_copy_only=False).astype(np.intp)
    columns["worksharing"] = Coded(shared, [False, True])
    per_rank = column("per_rank_s").to_pylist()
    columns["per_rank_s"] = [tuple(map(tuple, one)) if one else () for one in per_rank]
    lengths = pa.compute.list_value_length(lists).to_numpy()
    edges = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    times = lists.flatten().to_numpy()
    if not (np.isfinite(times) & (times >= 0)).all():
        raise ValueError("times that are no seconds")
    pairs = zip(lengths.tolist(), columns["per_rank_s"], strict=True)
    if any(len(times) != n for n, ranks in pairs for times in ranks):
        raise ValueError("a rank has another number of times than its row")
    if not set(columns["placement"].labels) <= {"out", "in"}:
        raise ValueError("a placement that is neither out nor in")
    return Rows(columns | silent(len(lengths)), Times(times, edges))
