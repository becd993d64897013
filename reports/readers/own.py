"""Reads Busbar's own records: JSON lines, a JSON list, CSV. Every format ever written stays readable."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from math import fsum, isfinite, sqrt
from typing import Any

from reports.gpus import energy, memory_clock
from reports.readers.rows import Note, Reading, Row, Run
from reports.record import FORMAT, Result, Sample
from reports.statistics import bandwidths, center, interval_ranks

__all__ = ["read_csv", "read_jsonl", "read_list", "recognises", "result", "results", "rows_of"]

_SAMPLE = {f.name for f in fields(Sample)}
_RESULT = {f.name for f in fields(Result)} - {"out", "in_place"}
_NEEDED = ("collective", "algorithm", "transport", "ranks", "size", "count", "dtype", "op", "root")


def recognises(document: object) -> bool:
    """Whether a JSON value is one of our lines, of this format or a newer one."""
    return isinstance(document, dict) and (
        ("collective" in document and "bus_factor" in document) or _is_run(document)
    )


def _is_run(document: Mapping[str, Any]) -> bool:
    """Whether it is the line of an environment, which records name as their ``run``."""
    return {"run", "environment", "format"} <= document.keys() and "collective" not in document


def result(document: Mapping[str, Any]) -> Result:
    """A record from its JSON form; fields that this version does not know are left out.

    Raises ValueError with the reason when it is no record that we can read.
    """
    _check_format(document)
    for name in _NEEDED:
        kind = int if name in ("ranks", "size", "count", "root") else str
        if not isinstance(document.get(name), kind):
            raise ValueError(f"{name} is missing or no {kind.__name__}")
    if not isinstance(document.get("bus_factor"), (int, float)):
        raise ValueError("bus_factor is missing or no number")
    known = {k: v for k, v in document.items() if k in _RESULT}
    known["gpus"] = tuple(known.get("gpus", ()))
    if not all(isinstance(gpu, dict) for gpu in known["gpus"]):
        raise ValueError("gpus are not a list of objects")
    out, in_place = _sample(document.get("out")), _sample(document.get("in_place"))
    return Result(**known, out=out, in_place=in_place)


def _check_format(document: Mapping[str, Any]) -> None:
    form = document.get("format")
    if not isinstance(form, int) or not 1 <= form <= FORMAT:
        raise ValueError(f"format {form!r} is not one that this version reads (1 to {FORMAT})")


def _sample(value: object) -> Sample | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("a placement is no object")
    known = {k: v for k, v in value.items() if k in _SAMPLE}
    known["times"] = _times(value.get("times", []))
    if "per_rank" in known:
        if not isinstance(known["per_rank"], list):
            raise ValueError("per_rank is no list")
        known["per_rank"] = tuple(map(_times, known["per_rank"]))
    limit = known.get("limit")
    if limit is not None and (not isinstance(limit, (int, float)) or not limit > 0):
        raise ValueError("limit is no number of seconds")
    return Sample(**known)


def _times(times: object) -> tuple[float, ...]:
    if (
        not isinstance(times, list)
        or not set(map(type, times)) <= {int, float}
        or not isfinite(fsum(times))
    ):
        raise ValueError("times are not a list of seconds")
    return tuple(times)


def rows_of(run: Run, line: int, r: Result) -> list[Row]:
    """The rows of a record: one a placement that was asked for, skipped ones without a time."""
    rows = []
    for placement in ("out", "in"):
        s = r.sample(placement)
        if s is not None:
            rows.append(_row(run, line, r, s, placement))
    return rows


def _row(run: Run, line: int, r: Result, s: Sample, placement: str) -> Row:
    seconds = center(s)
    rates = (None, None) if not seconds else bandwidths(r, seconds)
    each = sorted(s.times) if s.timing == "each" else []
    n = len(each)
    ends = interval_ranks(n)
    mean = sum(each) / n if n else 0.0
    squares = sum([t * t for t in each]) / n - mean * mean if n else 0.0
    return Row(
        run=run,
        line=line,
        collective=r.collective,
        size=r.size,
        message=r.size,
        placement=placement,
        algorithm=r.algorithm,
        transport=r.transport,
        ranks=r.ranks,
        count=r.count,
        dtype=r.dtype,
        op=r.op,
        root=r.root,
        statistic="mean" if s.timing == "loop" else "median",
        time_s=seconds,
        low_s=each[ends[0]] if ends else None,
        high_s=each[ends[1]] if ends else None,
        min_s=each[0] if n else None,
        max_s=each[-1] if n else None,
        p99_s=each[-(-n * 99 // 100) - 1] if n else None,
        cv=sqrt(max(0.0, squares)) / mean if mean > 0 else None,
        algbw_bytes_per_s=rates[0],
        busbw_bytes_per_s=rates[1],
        wrong=s.wrong,
        iterations=s.iterations,
        stopped=s.stopped,
        skipped=s.skipped,
        times_s=s.times,
        limit_s=s.limit,
        schedule=r.schedule,
        per_rank_s=s.per_rank,
        clock_memory_hz=memory_clock(r, placement),
        energy_per_op_j=energy(r, placement),
    )


class _Runs:
    """Records of one environment share one run, in the order in which they turn up."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._known: dict[str, Run] = {}
        self._last: Run | None = None

    def of(self, r: Result) -> Run:
        environment = r.environment
        if self._last is None or self._last.environment != environment:
            self._last = self._made(r)
        return self._last

    def _made(self, r: Result) -> Run:
        environment = r.environment
        key = json.dumps(environment, sort_keys=True)
        if key not in self._known:
            hosts = environment.get("hosts", ())
            devices = environment.get("devices") or [environment.get("cpu", "")]
            self._known[key] = Run(
                source=self._source,
                number=len(self._known),
                format="busbar",
                program=f"busbar {r.collective}",
                version=f"busbar {environment.get('busbar', '')}".strip(),
                library=str(environment.get("library", "")),
                hosts=tuple(map(str, hosts)) if isinstance(hosts, list) else (),
                devices=tuple(map(str, devices)) if isinstance(devices, list) else (),
                environment=environment,
            )
        return self._known[key]


class _Environments:
    """The lines of environments that have been read, by the name that records give them."""

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, Any]] = {}

    def keep(self, document: Mapping[str, Any]) -> None:
        """Take the line of an environment. Raises ValueError when it is none that we can read."""
        _check_format(document)
        if not isinstance(document["environment"], dict):
            raise ValueError("the environment is no object")
        self._known[str(document["run"])] = document["environment"]

    def fill(self, document: dict[str, Any]) -> str:
        """Put the environment that a record names into it; gives what is to be said of that."""
        if "run" not in document:
            return ""
        name, said = str(document["run"]), ""
        if name not in self._known:
            self._known[name] = {}
            said = f"the line of run {name} is missing: nothing is known of its machine"
        document["environment"] = self._known[name]
        return said


def _records(documents: Iterable[tuple[int, object]]) -> Iterator[tuple[int, Result | str]]:
    """The records among JSON values, or what is wrong with one, each with its line."""
    environments = _Environments()
    for line, document in documents:
        try:
            if isinstance(document, ValueError):
                raise document
            if not isinstance(document, dict):
                raise ValueError("not a record")
            if _is_run(document):
                environments.keep(document)
                continue
            said = environments.fill(document)
            if said:
                yield line, said
            yield line, result(document)
        except (ValueError, TypeError, OverflowError) as error:
            yield line, f"record not read: {error}"


def results(text: str) -> list[Result]:
    """The records of JSON lines, whole; those that cannot be read are left out."""
    return [r for _, r in _records(_parsed(text)) if isinstance(r, Result)]


def _readings(source: str, documents: Iterable[tuple[int, object]]) -> Reading:
    runs, rows, notes = _Runs(source), list[Row](), list[Note]()
    for line, r in _records(documents):
        if isinstance(r, str):
            notes.append(Note(source, line, r))
            continue
        try:
            rows += rows_of(runs.of(r), line, r)
        except (ValueError, TypeError, OverflowError) as error:
            notes.append(Note(source, line, f"record not read: {error}"))
    return Reading(rows, notes)


def read_list(source: str, documents: Sequence[object]) -> Reading:
    """The records of a JSON list."""
    return _readings(source, ((n, d) for n, d in enumerate(documents, 1)))


def read_jsonl(source: str, text: str) -> Reading:
    """The records of JSON lines; a line that was cut is said, the others are kept."""
    return _readings(source, _parsed(text))


def _parsed(text: str) -> Iterable[tuple[int, object]]:
    for n, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield n, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield n, ValueError(f"no JSON ({str(error)[:60]})")


def read_csv(source: str, text: str) -> Reading:
    """The rows of our CSV export, which has figures and no raw times."""
    run = Run(source, 0, "busbar-csv", "busbar")
    rows, notes = [], []
    table = csv.DictReader(text.splitlines())
    while True:
        try:
            cells = next(table, None)
            if cells is None:
                break
            rows.append(_csv_row(run, table.line_num, cells))
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            notes.append(Note(source, table.line_num, f"row not read: {error}"))
    return Reading(rows, notes)


def _csv_row(run: Run, line: int, cells: Mapping[str, str]) -> Row:
    def figure(column: str) -> float | None:
        value = float(cells[column]) if cells[column] else None
        if value is not None and not isfinite(value):
            raise ValueError(f"{column} is not finite")
        return value

    return Row(
        run=run,
        line=line,
        collective=cells["collective"],
        size=int(cells["size"]),
        message=int(cells["size"]),
        placement=cells["placement"],
        algorithm=cells["algorithm"],
        transport=cells["transport"],
        ranks=int(cells["ranks"]),
        count=int(cells["count"]),
        dtype=cells["dtype"],
        op=cells["op"],
        root=int(cells["root"]),
        statistic="median",
        time_s=figure("median_s"),
        low_s=figure("low_s"),
        high_s=figure("high_s"),
        algbw_bytes_per_s=figure("algbw_bytes_per_s"),
        busbw_bytes_per_s=figure("busbw_bytes_per_s"),
        wrong=int(cells["wrong"]) if cells["wrong"] else None,
        iterations=int(cells["iterations"]),
        stopped=cells["stopped"],
        skipped=cells["skipped"],
    )
