"""Reads the OSU micro-benchmarks: latency, bandwidth, barrier, non-blocking; ``-f`` and ``-T``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from reports.readers import names
from reports.readers.gathered import Gathered, figure, message_row
from reports.readers.text import Line
from reports.records.rows import Reading, Row, Run

_TITLE = re.compile(r"^\s*(?:# ?)?(?:OSU|OMB-Py) (\S+) (.+?) Test(?: v?([\w.]+))?\s*$")
_DATATYPE = re.compile(r"# Datatype:\s*(\w+)")
_COMMAND = re.compile(r"\b(?:mpirun|mpiexec|srun|orterun|prun|flux run|jsrun|aprun)\b.*\s(\S+)")
_RANKS = re.compile(r"(?:^|\s)(?:-np|-n|--np|--ntasks[= ]?|-ntasks)\s*=?\s*(\d{1,7})\b")
_NODES = re.compile(r"(?:^|\s)(?:-N|--nodes)\s*=?\s*(\d{1,6})\b")
_PER_NODE = re.compile(r"(?:^|\s)(?:--ntasks-per-node)\s*=?\s*(\d{1,6})\b")
# What Intel MPI says of each rank as it starts (I_MPI_DEBUG): rank, process, host, its cores.
_STARTED = re.compile(r"MPI startup\(\): (\d{1,7})\s+\d+\s+\S+\s+(?:\{|\d|$)")
_COLUMN = re.compile(
    r"(?:Transmit )?Size|Iterations|Validation|Messages/s|MB/s|[A-Za-z][\w.%]*(?: "
    r"[A-Za-z][\w.]*)*\s?\((?:us|MB/s|%)\)"
)
_FAILED = "validation failed; of how many elements is not said, so one is counted as wrong"
_POINT_TO_POINT = {"latency", "multithreadedlatency", "bandwidth", "bidirectional_bandwidth"}
_SECONDS = {"avglatency": "time_s", "latency": "time_s", "overall": "time_s"}
_SECONDS |= {"minlatency": "min_s", "maxlatency": "max_s"}


def launched_ranks(text: str) -> int | None:
    """The rank count of a launcher's command line, or of Intel MPI's list so far; else None."""
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

    def row(self, line: Line) -> Row | str | None:
        """A row, the reason why a line that looks like one is none, or None."""
        tokens = line.text.split()
        if not self.columns or not tokens or not re.match(r"[\d.]+$", tokens[0]):
            return None
        if len(tokens) < len(self.columns):
            return f"{len(tokens)} figures for {len(self.columns)} columns"
        cells = dict(zip(self.columns, tokens, strict=False))
        size = cells.pop("Size", "0")
        if not size.isdecimal() or len(size) > 19:
            return f"{size!r} is no size"
        fields: dict[str, Any] = {"transport": self.transport, "dtype": self.dtype}
        rate = None
        for name, cell in cells.items():
            if name == "Validation":
                verdict = cell.lower()[:4]
                if verdict not in ("pass", "fail"):
                    return f"validation says {cell!r}"
                fields["wrong"] = int(verdict == "fail")  # at least: the number is not said
                continue
            value = figure(cell)
            if value is None:
                return f"{cell!r} is no figure ({name})"
            key = re.sub(r"\(.*|[^a-z0-9]", "", name.lower())
            if name == "Iterations":
                fields["iterations"] = int(value)
            elif "MB/s" in name and "Tail" not in name:
                rate = value * 1e6
            elif key in _SECONDS:
                fields[_SECONDS[key]] = value * 1e-6
            elif key.startswith("p99") and "us" in name:
                fields["p99_s"] = value * 1e-6
        return message_row(
            self.run, line.number, self.collective, int(size), self.ranks, rate, **fields
        )


def _collective(model: str, title: str) -> str:
    """The collective of a title; of another benchmark its whole name, ``MPI_Get latency``'s too."""
    _, _, operation = model.partition("_")
    if operation or title.lower().startswith("multi"):
        return names.collective(f"{operation} {title}")
    name = re.sub(r" (?:Latency|Personalized Exchange)\b", "", title)
    return names.collective(name or title)


def read(source: str, lines: Iterable[Line]) -> Reading:
    """All OSU tables in a log; rank counts come from a launcher's line above, if any."""
    found = Gathered(source)
    table: _Table | None = None
    number, ranks = 0, None
    for line in lines:
        ranks = launched_ranks(line.text) or ranks
        if title := _TITLE.search(line.text):
            found.close()
            table = _Table(source, number, title, ranks)
            number += 1
        elif table is None:
            continue
        elif line.text.lstrip().startswith(("#---", "# Benchmarking", "# nThread", "# nccl-tests")):
            found.close()
            table = None
        elif datatype := _DATATYPE.search(line.text):
            table.dtype = names.dtype(datatype.group(1))
        elif columns := _columns(line.text):
            table.columns = columns
            found.header(line.number)
        elif row := table.row(line):
            found.take(line.number, row)
            if isinstance(row, Row) and row.wrong:
                found.note(line.number, _FAILED)
    first = next((row.line for row in found.rows if row.size is None), None)
    if first is not None:
        found.note(first, "the collective's whole size needs the rank count; give it with --ranks")
    return found.close()
