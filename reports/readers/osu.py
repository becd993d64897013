"""Reads the OSU micro-benchmarks: latency, bandwidth, barrier, non-blocking; ``-f`` and ``-T``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import inf
from typing import Any

from reports.readers import names
from reports.readers.text import Line
from reports.records.rows import Note, Reading, Row, Run

_TITLE = re.compile(r"^\s*(?:# ?)?(?:OSU|OMB-Py) (\S+) (.+?) Test(?: v?([\w.]+))?\s*$")
_DATATYPE = re.compile(r"# Datatype:\s*(\w+)")
_COMMAND = re.compile(r"\b(?:mpirun|mpiexec|srun|orterun|prun|flux run|jsrun|aprun)\b.*\s(\S+)")
_RANKS = re.compile(r"(?:^|\s)(?:-np|-n|--np|--ntasks[= ]?|-ntasks)\s*=?\s*(\d{1,7})\b")
_NODES = re.compile(r"(?:^|\s)(?:-N|--nodes)\s*=?\s*(\d{1,6})\b")
_PER_NODE = re.compile(r"(?:^|\s)(?:--ntasks-per-node)\s*=?\s*(\d{1,6})\b")
# What Intel MPI says of each rank as it starts (I_MPI_DEBUG): rank, process, host, its cores.
_STARTED = re.compile(r"MPI startup\(\): (\d{1,7})\s+\d+\s+\S+\s+(?:\{|\d|$)")
_COLUMN = re.compile(
    r"Size|Iterations|Validation|Messages/s|MB/s|[A-Za-z][\w.%]*(?: "
    r"[A-Za-z][\w.]*)*\s?\((?:us|MB/s|%)\)"
)
_FAILED = "validation failed; of how many elements is not said, so one is counted as wrong"
_POINT_TO_POINT = {"latency", "multithreadedlatency", "bandwidth", "bidirectional_bandwidth"}
_SECONDS = {"avglatency": "time_s", "latency": "time_s", "overall": "time_s"}
_SECONDS |= {"minlatency": "min_s", "maxlatency": "max_s"}


def launched_ranks(text: str) -> int | None:
    """The rank count of a launcher's command line, or so far of Intel MPI's; None elsewhere."""
    started = _STARTED.search(text)
    if started:
        return int(started.group(1)) + 1
    if not _COMMAND.search(text):
        return None
    found = _RANKS.search(text)
    if found:
        return int(found.group(1))
    nodes, each = _NODES.search(text), _PER_NODE.search(text)
    if "srun" not in text or not nodes:
        return None
    return int(nodes.group(1)) * int(each.group(1) if each else 1)


def _columns(text: str) -> list[str] | None:
    """The columns of a header line, None for any other line."""
    if not re.match(r"\s*#?\s*(?:Size|Avg|Overall)\b", text) or "=" in text:
        return None
    found = _COLUMN.findall(text)
    return found if found and any(c != "Size" for c in found) else None


class _Table:
    """One benchmark's table while it is being read."""

    def __init__(self, source: str, number: int, title: re.Match[str], ranks: int | None) -> None:
        model, name, version = title.groups()
        self.collective = _collective(model, name)
        one_sided = "_" in model
        self.ranks = 2 if one_sided or self.collective in _POINT_TO_POINT else ranks
        program = f"OSU {model} {name}"
        self.run = Run(source, number, "osu", program, f"OSU {version or ''}".strip())
        model = model.partition("_")[0]
        self.transport = {"MPI-CUDA": "cuda", "MPI-ROCM": "rocm"}.get(model, model.lower())
        self.dtype = ""
        self.columns: list[str] = []
        # The line of a header that has no row yet, 0 where there is none.
        self.bare = 0

    def row(self, line: Line) -> Row | str | None:
        """A row, why a line that looks like one is none, or None."""
        tokens = line.text.split()
        if not self.columns or not tokens or not re.match(r"[\d.]+$", tokens[0]):
            return None
        if len(tokens) < len(self.columns):
            return f"{len(tokens)} figures for {len(self.columns)} columns"
        cells = dict(zip(self.columns, tokens, strict=False))
        size = cells.pop("Size", "0")
        if not size.isdecimal() or len(size) > 19:
            return f"{size!r} is no size"
        figures: dict[str, Any] = {}
        iterations, wrong, rate = None, None, None
        for name, cell in cells.items():
            if name == "Validation":
                verdict = cell.lower()[:4]
                if verdict not in ("pass", "fail"):
                    return f"validation says {cell!r}"
                wrong = 0 if verdict == "pass" else 1  # at least: how many is not said
                continue
            value = _figure(cell)
            if value is None:
                return f"{cell!r} is no figure ({name})"
            key = re.sub(r"\(.*|[^a-z0-9]", "", name.lower())
            if name == "Iterations":
                iterations = int(value)
            elif "MB/s" in name:
                rate = value * 1e6
            elif key in _SECONDS:
                figures[_SECONDS[key]] = value * 1e-6
            elif key.startswith("p99") and "us" in name:
                figures["p99_s"] = value * 1e-6
        return self._made(line.number, int(size), figures, rate, iterations, wrong)

    def _made(
        self,
        line: int,
        message: int,
        figures: dict[str, Any],
        rate: float | None,
        iterations: int | None,
        wrong: int | None,
    ) -> Row | str:
        seconds = figures.get("time_s")
        if seconds is None and rate is None:
            return "no column of a latency or a bandwidth"
        size = names.whole(self.collective, message, self.ranks)
        algbw, busbw = names.rates(self.collective, self.ranks, size, seconds, rate)
        return Row(
            run=self.run,
            line=line,
            collective=self.collective,
            size=size,
            message=message,
            ranks=self.ranks,
            transport=self.transport,
            dtype=self.dtype,
            algbw_bytes_per_s=algbw,
            busbw_bytes_per_s=busbw,
            iterations=iterations,
            wrong=wrong,
            **figures,
        )


def _collective(model: str, title: str) -> str:
    """The collective of a title; of another benchmark its whole name, ``MPI_Get latency``'s too."""
    _, _, operation = model.partition("_")
    if operation or title.lower().startswith("multi"):
        return names.collective(f"{operation} {title}")
    name = re.sub(r" (?:Latency|Personalized Exchange)\b", "", title)
    return names.collective(name or title)


def _figure(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if 0 <= value < inf else None


def read(source: str, lines: Iterable[Line]) -> Reading:
    """All OSU tables in a log; rank counts come from a launcher's line above, if any."""
    rows: list[Row] = []
    notes: list[Note] = []
    bare: list[int] = []
    table: _Table | None = None
    number, ranks = 0, None
    for line in lines:
        ranks = launched_ranks(line.text) or ranks
        title = _TITLE.search(line.text)
        if title:
            bare.append(table.bare if table else 0)
            table = _Table(source, number, title, ranks)
            number += 1
            continue
        if table is None:
            continue
        if line.text.lstrip().startswith(("#---", "# Benchmarking", "# nThread", "# nccl-tests")):
            bare.append(table.bare)
            table = None
            continue
        datatype = _DATATYPE.search(line.text)
        if datatype:
            table.dtype = names.dtype(datatype.group(1))
            continue
        columns = _columns(line.text)
        if columns:
            table.columns, table.bare = columns, line.number
            continue
        row = table.row(line)
        table.bare = table.bare if row is None else 0
        if isinstance(row, str):
            notes.append(Note(source, line.number, f"row not read: {row}"))
        elif row is not None:
            rows.append(row)
            if row.wrong:
                notes.append(Note(source, line.number, _FAILED))
    bare.append(table.bare if table else 0)
    notes += [Note(source, n, "a table's header with no row below it") for n in bare if n]
    if any(r.size is None for r in rows):
        text = "the collective's whole size needs the rank count; give it with --ranks"
        notes.append(Note(source, next(r.line for r in rows if r.size is None), text))
    return Reading(rows, notes)
