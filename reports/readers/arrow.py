"""Large records by Arrow's JSON reader: the same rows as `reports.readers.own`, several times sooner.

It takes only what is wholly regular and leaves everything else, and every judgement, to `own`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reports.readers.columns import HEAD, REAL, Coded, Rows, Times, finished, known
from reports.readers.runs import Runs
from reports.readers.upgrade import OLD, per_core, shared_work
from reports.records.gpus import energy, memory_clock
from reports.records.record import FORMAT

__all__ = ["LEAST_BYTES", "rows"]

#: Below this, importing Arrow takes longer than reading without it.
LEAST_BYTES = 4 << 20
_BYTES = ("sent", "received", "total")
_ABSENT = {"alg_factor": 1.0, "schedule": "", "ranks_per_core": 0.0, "worksharing": False}
_TEXTS = {"stopped": "", "skipped": "", "timing": "each", "across": "max"}


class _Irregular(Exception):
    """Something that has to be looked at line by line."""


def rows(source: str, data: bytes) -> Rows | None:
    """The rows of JSON lines in UTF-8; None when a line is not as this version writes it.

    None also without pyarrow.
    """
    try:
        import pyarrow as pa
        import pyarrow.json as reader
    except ImportError:
        return None
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    if not data.endswith(b"\n"):
        return None
    longest = int(np.diff(ends, prepend=-1).max())
    try:
        table = reader.read_json(
            pa.BufferReader(data),
            read_options=reader.ReadOptions(block_size=max(8 << 20, 2 * longest)),
            parse_options=reader.ParseOptions(
                explicit_schema=_schema(pa), unexpected_field_behavior="ignore"
            ),
        )
        if len(table) != len(ends):
            raise _Irregular("blank lines")
        return _Reader(pa, table, data, ends).rows(source)
    except (pa.ArrowException, _Irregular, ValueError, TypeError):
        return None


def _schema(pa: Any) -> Any:
    text, whole, real = pa.string(), pa.int64(), pa.float64()
    half = pa.struct(
        [
            ("times", pa.list_(real)),
            ("iterations", whole),
            ("timing", text),
            ("across", text),
            ("stopped", text),
            ("wrong", whole),
            ("skipped", text),
            ("limit", real),
            ("per_rank", pa.list_(pa.list_(real))),
            *((name, whole) for name in _BYTES),
        ]
    )
    gpu = [("placement", text), ("clock_memory_hz", pa.list_(real)), ("energy_per_op_j", real)]
    kinds = {"ranks": whole, "size": whole, "count": whole, "root": whole}
    kinds |= dict.fromkeys(REAL, real) | {"worksharing": pa.bool_()}
    head = [(name, kinds.get(name, text)) for name in HEAD]
    more = [("out", half), ("in_place", half), ("gpus", pa.list_(pa.struct(gpu)))]
    return pa.schema([*head, *more, ("run", text), ("format", whole)])


class _Reader:
    """From a table of lines to rows. Raises _Irregular where `own` has to decide."""

    def __init__(self, pa: Any, table: Any, data: bytes, ends: NDArray[np.intp]) -> None:
        self._pa, self._data, self._ends = pa, data, ends
        form = table.column("format")
        if form.null_count or not set(form.unique().to_pylist()) <= {OLD, FORMAT}:
            raise _Irregular("another format")
        is_run = table.column("collective").is_null().to_numpy()
        self._run_lines = np.flatnonzero(is_run)
        self._lines = np.flatnonzero(~is_run)
        self._table = table.filter(pa.array(~is_run)).combine_chunks()

    def rows(self, source: str) -> Rows:
        halves = [self._column(key) for key in ("out", "in_place")]
        valid = np.stack([half.is_valid().to_numpy(zero_copy_only=False) for half in halves], 1)
        placed = np.flatnonzero(valid.ravel())
        self._record, which = placed // 2, placed % 2
        both = self._pa.concat_arrays(halves).take(
            self._pa.array(which * len(self._lines) + self._record)
        )
        self._half = dict(zip([f.name for f in both.type], both.flatten(), strict=True))
        columns = {"run": self._runs(source), "line": (self._lines + 1)[self._record]}
        columns |= {name: self._head(name) for name in HEAD}
        columns["placement"] = Coded(which, ["out", "in"])
        texts = {
            name: self._coded(self._half[name].fill_null(absent)) for name, absent in _TEXTS.items()
        }
        columns |= texts
        timing = texts["timing"]
        loop = np.array([label == "loop" for label in timing.labels], np.intp)
        columns["statistic"] = Coded(loop[timing.codes], ["median", "mean"])
        columns["iterations"] = self._counts("iterations", 0)
        columns |= {name: self._known_counts(name) for name in ("wrong", *_BYTES)}
        columns |= {f"{name}_bytes": columns.pop(name) for name in _BYTES}
        columns |= self._upgraded(columns)
        columns["limit_s"] = self._limits()
        columns["per_rank_s"] = self._per_rank()
        columns |= self._gpus(which)
        return finished(columns, self._times())

    def _column(self, name: str) -> Any:
        found = self._table.column(name)
        return found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)

    def _coded(self, values: Any) -> Coded:
        found = values.dictionary_encode()
        return Coded(found.indices.to_numpy().astype(np.intp), found.dictionary.to_pylist())

    def _head(self, name: str) -> Any:
        column = self._column(name)
        if name in _ABSENT:
            column = column.fill_null(_ABSENT[name])
        if column.null_count:
            raise _Irregular(name)
        if self._pa.types.is_string(column.type) or self._pa.types.is_boolean(column.type):
            found = self._coded(column)
            return Coded(found.codes[self._record], found.labels)
        values = column.to_numpy()
        if not np.isfinite(values).all() or (name == "ranks_per_core" and (values < 0).any()):
            raise _Irregular(name)
        return values[self._record]

    def _upgraded(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Ranks per core, and whether work was shared: of the old format's rows worked out."""
        each, shared = columns["ranks_per_core"].copy(), columns["worksharing"]
        shared = np.array(shared.labels, np.bool_)[shared.codes]
        old = (self._column("format").to_numpy() <= OLD)[self._record]
        names = ("run", "transport", "algorithm", "schedule")
        codes = [*(columns[name].codes for name in names), columns["ranks"]]
        kinds, which = np.unique(np.stack(codes)[:, old], axis=1, return_inverse=True)
        said = [
            tuple(columns[name].labels[code] for name, code in zip(names, kind, strict=False))
            for kind in kinds.T.tolist()
        ]
        ranks, which = kinds[-1].tolist(), which.reshape(-1)
        derived = [
            (per_core(transport, n, run.environment), shared_work(transport, algorithm, schedule))
            for (run, transport, algorithm, schedule), n in zip(said, ranks, strict=True)
        ]
        each[old] = np.array([one for one, _ in derived], np.float64)[which]
        shared[old] = np.array([one for _, one in derived], np.bool_)[which]
        return {
            "ranks_per_core": known(each),
            "worksharing": Coded(shared.astype(np.intp), [False, True]),
        }

    def _runs(self, source: str) -> Coded:
        """The run of every row; the lines of runs must stand before what names them."""
        column = self._column("run")
        if column.null_count:
            raise _Irregular("a record without a run")
        names, runs = self._coded(column), Runs(source)
        starts = np.concatenate([[0], self._ends[:-1] + 1])
        known: dict[str, int] = {}
        for line in self._run_lines.tolist():
            document = json.loads(self._data[starts[line] : self._ends[line]])
            if {"run", "environment"} - document.keys() or document["run"] in known:
                raise _Irregular("no line of a run, or one that is told twice")
            runs.keep(document)
            known[document["run"]] = line
        labels = []
        for n, name in enumerate(names.labels):
            first = int(np.argmax(names.codes == n))
            if known.get(name, len(self._ends)) > self._lines[first]:
                raise _Irregular("a run that is not known yet")
            collective = self._table.column("collective")[first].as_py()
            labels.append(runs.of({"run": name, "collective": collective})[0])
        return Coded(names.codes[self._record], labels)

    def _counts(self, name: str, absent: int) -> NDArray[np.int64]:
        values: NDArray[np.int64] = self._half[name].fill_null(absent).to_numpy()
        if (values < absent).any():
            raise _Irregular(name)
        return values

    def _known_counts(self, name: str) -> Any:
        """Counts, None where a record has none."""
        column = self._half[name]
        values = self._counts(name, -1)
        if (values < 0).sum() != column.null_count:
            raise _Irregular(name)
        return column.to_pylist() if column.null_count else values

    def _limits(self) -> NDArray[np.float64]:
        values: NDArray[np.float64] = self._half["limit"].to_numpy(zero_copy_only=False)
        known = values[~np.isnan(values)]
        if not ((known > 0) & np.isfinite(known)).all():
            raise _Irregular("limit")
        return values

    def _per_rank(self) -> list[tuple[tuple[float, ...], ...]]:
        column = self._half["per_rank"]
        if column.null_count == len(column):
            return [()] * len(column)
        lists = column.to_pylist()
        flat = column.flatten().flatten()
        if flat.null_count or not np.isfinite(flat.to_numpy()).all():
            raise _Irregular("per_rank")
        ends = self._pa.compute.list_value_length(self._half["times"]).fill_null(0).to_pylist()
        if any(len(times) != n for n, one in zip(ends, lists, strict=True) for times in one or ()):
            raise _Irregular("per_rank")
        return [tuple(map(tuple, one or ())) for one in lists]

    def _times(self) -> Times:
        column = self._half["times"]
        lengths = self._pa.compute.list_value_length(column).fill_null(0).to_numpy()
        values = column.flatten()
        if values.null_count or not np.isfinite(values.to_numpy()).all():
            raise _Irregular("times")
        if (values.to_numpy() < 0).any():
            raise _Irregular("times")
        return Times(values.to_numpy(), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    def _gpus(self, which: NDArray[np.intp]) -> Mapping[str, Any]:
        column = self._column("gpus")
        names = ("clock_memory_hz", "energy_per_op_j")
        if column.null_count == len(column):
            return {name: np.full(len(which), np.nan) for name in names}
        gpus = column.to_pylist()
        found: dict[str, list[float | None]] = {name: [] for name in names}
        for record, in_place in zip(self._record.tolist(), which.tolist(), strict=True):
            of_record, placement = gpus[record] or (), "in" if in_place else "out"
            found["clock_memory_hz"].append(memory_clock(of_record, placement))
            found["energy_per_op_j"].append(energy(of_record, placement))
        return {name: np.array(values, np.float64) for name, values in found.items()}
