"""Reads the OSU micro-benchmarks: latency, bandwidth, barrier, non-blocking; ``-f`` and ``-T``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from reports.readers import names
from reports.readers.gathered import Gathered, figure, message_row, signed
from reports.readers.text import Line
from reports.records.measurement import Measurement, Reading, Run
from reports.records.metrics import PURE

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
_SECONDS = {"avglatency": "time_s", "latency": "time_s", "minlatency": "min_s"}
_SECONDS |= {"maxlatency": "max_s", "p99taillat": "p99_s"}
# Of non-blocking collectives; what is called overall holds OSU's own compute.
_SECONDS |= {"purecomm": "time_s", "mincomm": "min_s", "maxcomm": "max_s"}
_SECONDS |= {"overall": "overall_s", "compute": "compute_s"}
_RATES = {"messagess": ("messages_per_s", 1.0), "mbs": ("bandwidth_bytes_per_s", 1e6)}
_RATES |= {"bandwidth": ("bandwidth_bytes_per_s", 1e6)}


def launched_ranks(text: str) -> int | None:
    """The rank count of a launcher's command line, or of Intel MPI's list so far; else None."""
    started = _STARTED.search(text)
    if started:
        return int(started.group(1)) + 1
    if not _COMMAND.search(text):
        return None
    match = _RANKS.search(text)
    if match:
        return int(match.group(1))
    nodes, each = _NODES.search(text), _PER_NODE.search(text)
    if "srun" not in text or not nodes:
        return None
    return int(nodes.group(1)) * int(each.group(1) if each else 1)


def _key(column: str) -> str:
    """The name of a column without its unit, in lower case: ``Pure Comm.(us)`` is ``purecomm``."""
    return re.sub(r"\(.*|[^a-z0-9]", "", column.lower())


def _columns(text: str) -> list[str] | None:
    """The columns of a header line, None for any other line."""
    if not re.match(r"\s*#?\s*(?:Size|Avg|Overall)\b", text) or "=" in text:
        return None
    names = _COLUMN.findall(text)
    return names if names and any(c != "Size" for c in names) else None


class _Table:
    """One benchmark's table while it is being read."""

    def __init__(self, source: str, number: int, title: re.Match[str], ranks: int | None) -> None:
        model, name, version = title.groups()
        self.collective = _collective(model, name)
        one_sided = "_" in model
        self.ranks = 2 if one_sided or names.blocking(self.collective) in _POINT_TO_POINT else ranks
        program = f"OSU {model} {name}"
        self.run = Run(source, number, "osu", program, f"OSU {version or ''}".strip())
        model = model.partition("_")[0]
        self.transport = {"MPI-CUDA": "cuda", "MPI-ROCM": "rocm"}.get(model, model.lower())
        self.dtype = ""
        self.columns: list[str] = []

    def row(self, line: Line) -> Measurement | str | None:
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
        for name, cell in cells.items():
            if name == "Validation":
                verdict = cell.lower()[:4]
                if verdict not in ("pass", "fail"):
                    return f"validation says {cell!r}"
                fields["wrong"] = int(verdict == "fail")  # at least: the number is not said
                continue
            key = _key(name)
            value = signed(cell) if key == "overlap" else figure(cell)
            if value is None:
                return f"{cell!r} is no figure ({name})"
            if key == "iterations":
                fields["iterations"] = int(value)
            elif key == "overlap":
                fields["overlap"] = value * 1e-2
            elif key in _RATES:
                column, unit = _RATES[key]
                fields[column] = value * unit
            elif key in _SECONDS:
                fields[_SECONDS[key]] = value * 1e-6
        if "overall_s" in fields:
            fields["time_of"] = PURE
        return message_row(self.run, line.number, self.collective, int(size), self.ranks, **fields)

    def left_out(self) -> str:
        """The columns of the header that no field of a row holds, as a text; empty for none."""
        known = {*_SECONDS, *_RATES, "size", "iterations", "validation", "overlap"}
        names = [name for name in self.columns if _key(name) not in known]
        return f"columns that are not read: {', '.join(names)}" if names else ""


def _collective(model: str, title: str) -> str:
    """The collective of a title; of another benchmark its whole name, ``MPI_Get latency``'s too."""
    _, _, operation = model.partition("_")
    if operation or title.lower().startswith("multi"):
        return names.collective(f"{operation} {title}")
    name = re.sub(r" (?:Latency|Personalized Exchange)\b", "", title)
    alone = not name or name.lower() in ("persistent", "non-blocking")
    return names.collective(title if alone else name)


def read(source: str, lines: Iterable[Line]) -> Reading:
    """All OSU tables in a log; rank counts come from a launcher's line above, if any."""
    gathered = Gathered(source)
    table: _Table | None = None
    number, ranks = 0, None
    for line in lines:
        ranks = launched_ranks(line.text) or ranks
        if title := _TITLE.search(line.text):
            gathered.close()
            table = _Table(source, number, title, ranks)
            number += 1
        elif table is None:
            continue
        elif line.text.lstrip().startswith(("#---", "# Benchmarking", "# nThread", "# nccl-tests")):
            gathered.close()
            table = None
        elif datatype := _DATATYPE.search(line.text):
            table.dtype = names.dtype(datatype.group(1))
        elif columns := _columns(line.text):
            table.columns = columns
            gathered.header(line.number)
            if left_out := table.left_out():
                gathered.note(line.number, left_out)
        elif row := table.row(line):
            gathered.take(line.number, row)
            if isinstance(row, Measurement) and row.wrong:
                gathered.note(line.number, _FAILED)
    first = next((row.line for row in gathered.rows if row.size is None), None)
    if first is not None:
        gathered.note(
            first, "the collective's whole size needs the rank count; give it with --ranks"
        )
    return gathered.close()
