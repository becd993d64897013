"""Reads Busbar's own records: JSON lines, a JSON list, CSV. Every format ever written stays readable."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from math import fsum, isfinite, sqrt
from typing import Any

from reports.readers.rows import Note, Reading, Row, Run
from reports.record import FORMAT, Result, Sample
from reports.statistics import bandwidths, center, interval_ranks

__all__ = ["read_csv", "read_jsonl", "read_list", "recognises", "result", "rows_of"]

_SAMPLE = {f.name for f in fields(Sample)}
_RESULT = {f.name for f in fields(Result)} - {"out", "in_place"}
_NEEDED = ("collective", "algorithm", "transport", "ranks", "size", "count", "dtype", "op", "root")


def recognises(document: object) -> bool:
    """Whether a JSON value is one of our records, of this format or a newer one."""
    return isinstance(document, dict) and "collective" in document and "bus_factor" in document


def result(document: Mapping[str, Any]) -> Result:
    """A record from its JSON form; fields that this version does not know are left out.

    Raises ValueError with the reason when it is no record that we can read.
    """
    form = document.get("format")
    if not isinstance(form, int) or not 1 <= form <= FORMAT:
        raise ValueError(f"format {form!r} is not one that this version reads (1 to {FORMAT})")
    for name in _NEEDED:
        kind = int if name in ("ranks", "size", "count", "root") else str
        if not isinstance(document.get(name), kind):
            raise ValueError(f"{name} is missing or no {kind.__name__}")
    if not isinstance(document.get("bus_factor"), (int, float)):
        raise ValueError("bus_factor is missing or no number")
    known = {k: v for k, v in document.items() if k in _RESULT}
    out, in_place = _sample(document.get("out")), _sample(document.get("in_place"))
    return Result(**known, out=out, in_place=in_place)


def _sample(value: object) -> Sample | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("a placement is no object")
    times = value.get("times", [])
    if (
        not isinstance(times, list)
        or not set(map(type, times)) <= {int, float}
        or not isfinite(fsum(times))
    ):
        raise ValueError("times are not a list of seconds")
    known = {k: v for k, v in value.items() if k in _SAMPLE}
    return Sample(**{**known, "times": tuple(times)})


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


def _readings(source: str, documents: Iterable[tuple[int, object]]) -> Reading:
    runs, rows, notes = _Runs(source), [], []
    for line, document in documents:
        try:
            if isinstance(document, ValueError):
                raise document
            if not isinstance(document, dict):
                raise ValueError("not a record")
            r = result(document)
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
