"""Reads what nccl-tests print, whatever stands around and inside: several runs, ranks, messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isclose

from reports.readers import names
from reports.readers.nccl_lines import (
    Header,
    Start,
    cells,
    header,
    number,
    row_start,
    without_messages,
)
from reports.readers.rows import Note, Reading, Row, Run
from reports.readers.text import Line

__all__ = ["read"]

_DEVICE = re.compile(
    r"Rank\s+(\d{1,7})\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+ on\s+(\S+)\s+device\s+\d+ \[[^\]]*\]\s*(.*)"
)
_STARTING = re.compile(r"Collective test (?:starting|concluded): (.+)")
_OURS = re.compile(r"(\S+) (.+) \((\w+)\)$")
_PERF = re.compile(r"\b([a-z]+(?:_[a-z]+)*)_perf(?:_mpi)?\b")
_LIBRARY = re.compile(r"^#?\s*((?:NCCL|RCCL) version:? \S+)|INFO ((?:NCCL|RCCL) version \S+)")
_HEADER_LIBRARY = re.compile(r"nccl-library=(\d+)")
_ITERATIONS = re.compile(r"(?<!warmup )iters: (\d{1,9})\b")
_NRANKS = re.compile(r"\bnranks[ =](\d{1,7})\b")
_CALLED = re.compile(r"NCCL INFO (\w+): opCount ")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*([\d.]+(?:e[+-]?\d+)?)")
_HOST = re.compile(r"^([\w.-]+):\d+:\d+ (?:\[[-\d]+\] )?NCCL ")


@dataclass
class _Table:
    """One run's table while it is being read."""

    program: str = ""
    version: str = ""
    library: str = ""
    ranks: dict[int, set[int]] = field(default_factory=dict)
    hosts: dict[str, None] = field(default_factory=dict)
    devices: dict[str, None] = field(default_factory=dict)
    nranks: int | None = None
    iterations: int | None = None
    header: Header | None = None
    began: int = 0
    refused: bool = False
    rows: list[Start] = field(default_factory=list)
    average: tuple[int, float] | None = None

    def size_of_world(self) -> int | None:
        if not self.ranks:
            return self.nranks
        if len(self.ranks) > 1:  # split into groups: ranks of one communicator
            return max(len(members) for members in self.ranks.values())
        return max(next(iter(self.ranks.values()))) + 1


class _Stream:
    """The tables of one rank's output, or of a file that does not say whose it is."""

    def __init__(self, source: str, notes: list[Note]) -> None:
        self.tables: list[_Table] = []
        self._source, self._notes = source, notes
        self._table = _Table()
        self._pending: Start | None = None

    def note(self, line: int, text: str) -> None:
        self._notes.append(Note(self._source, line, text))

    def feed(self, line: Line, hosts: Mapping[str, None], program: str) -> None:
        if self._comment(line, program):
            return
        text = without_messages(line.text, tuple(hosts))
        if not text.strip():
            return
        if self._pending and self._continued(text):
            return
        start = (
            None
            if text.lstrip().startswith("#")
            else row_start(line.number, text, self._table.header)
        )
        if isinstance(start, str):
            self._flush()
            self._table.refused = True
            self.note(line.number, f"row not read: {start}")
        elif start is not None:
            self._flush()
            if not self._table.rows and not self._table.program:
                self._table.program = program
            self._pending = start
            if len(start.cells) + start.first >= start.header.cells:
                self._flush()

    def _continued(self, text: str) -> bool:
        found = cells(text)
        if not found or self._pending is None:
            return False
        room = self._pending.header.cells - self._pending.first - len(self._pending.cells)
        if len(found) > room:
            return False
        self._pending.cells += found
        if len(found) == room:
            self._flush()
        return True

    def _flush(self) -> None:
        """Keep the row that was being read, or say what it lacks."""
        start, self._pending = self._pending, None
        if start is None:
            return
        width = len(start.header.half)
        if len(start.cells) < width:
            self._table.refused = True
            self.note(start.line, f"row of {start.size} B not read: its figures are missing")
            return
        if len(start.cells) % width:
            self.note(start.line, f"row of {start.size} B: the in-place half is cut and left out")
        if start.surplus:
            self.note(
                start.line,
                f"row of {start.size} B: {start.surplus} figures beyond the header left out",
            )
        self._table.rows.append(start)

    def end_of_table(self) -> None:
        """Close what is open and begin anew."""
        self._flush()
        if self._table.rows:
            self.tables.append(self._table)
        elif self._table.header is not None and not self._table.refused:
            self.note(self._table.began, "a table's header with no row below it")
        self._table = _Table()

    def _comment(self, line: Line, program: str) -> bool:
        """Take what a line outside the rows says; whether that was all of it."""
        text, table = line.text, self._table
        columns = header(text)
        opens = (
            columns
            or ("nThread " in text and "minBytes" in text)
            or "nccl-tests version" in text
            or "test starting" in text
        )
        if opens and (table.rows or self._pending):
            self.end_of_table()
            table = self._table
        if columns:
            table.header, table.began = columns, line.number
            table.program = table.program or program
            return True
        device = _DEVICE.search(text)
        if device:
            rank, group, host, name = device.groups()
            table.ranks.setdefault(int(group or 0), set()).add(int(rank))
            table.hosts[host] = table.devices[name.strip()] = None
            return True
        average = _AVERAGE.search(text)
        if average:
            self._flush()
            table.average = (line.number, float(average.group(1)))
            return True
        if "Out of bounds values" in text:
            self._flush()
            return True
        self._facts(text)
        return False

    def _facts(self, text: str) -> None:
        table = self._table
        starting = _STARTING.search(text)
        if starting:
            table.program = starting.group(1).strip()
        if "nccl-tests version" in text or "busbar version" in text:
            table.version = text.lstrip("# ").strip()
            library = _HEADER_LIBRARY.search(text)
            if library and not table.library:
                table.library = f"NCCL {library.group(1)}"
        library = _LIBRARY.search(text)
        if library:
            found = library.group(1) or library.group(2)
            table.library = found.replace(" version:", "").replace(" version", "")
        if "nThread" in text:
            iterations = _ITERATIONS.search(text)
            table.iterations = int(iterations.group(1)) if iterations else None
        called = _CALLED.search(text)
        if called and not table.program:
            table.program = called.group(1)
        nranks = _NRANKS.search(text)
        if nranks:
            table.nranks = max(int(nranks.group(1)), table.nranks or 0)


def read(source: str, lines: Iterable[Line]) -> Reading:
    """All tables in a log. What cannot be read is said by line, and what was inferred by table."""
    notes: list[Note] = []
    streams: dict[str, _Stream] = {}
    hosts: dict[str, None] = {}
    program = ""
    for line in lines:
        host = _HOST.match(line.text)
        if host:
            hosts[host.group(1)] = None
        named = _PERF.search(line.text)
        if named and names.collective(named.group(1)) in names.KNOWN:
            program = named.group(0)
        device = _DEVICE.search(line.text)
        if device:
            hosts[device.group(3)] = None
        if line.stream not in streams:
            streams[line.stream] = _Stream(source, notes)
        streams[line.stream].feed(line, hosts, program)
    tables = []
    for stream in streams.values():
        stream.end_of_table()
        tables += stream.tables
    tables.sort(key=lambda table: table.rows[0].line)
    rows: list[Row] = []
    guesses: dict[str, list[int]] = {}
    for n, table in enumerate(tables):
        rows += _rows(source, n, table, notes, guesses)
    for text, where in guesses.items():
        more = f" (and {len(where) - 1} tables more)" if len(where) > 1 else ""
        notes.append(Note(source, where[0], text + more))
    return Reading(rows, sorted(notes, key=lambda note: note.line))


def _rows(
    source: str, n: int, table: _Table, notes: list[Note], guesses: dict[str, list[int]]
) -> list[Row]:
    ours = _OURS.match(table.program)
    name, algorithm, transport = ours.groups() if ours else (table.program, "", "")
    collective = names.collective(name)
    if not collective or _contradicted(table, collective):
        collective = _inferred(table)
        text = f"taken for {collective} by its columns" if collective else "it stays empty"
        text = f"no line names the collective of this table: {text}"
        guesses.setdefault(text, []).append(table.rows[0].line)
    ranks = table.size_of_world() or _inferred_ranks(table, collective)
    run = Run(
        source,
        n,
        "nccl-tests",
        table.program,
        table.version,
        table.library,
        tuple(table.hosts),
        tuple(table.devices),
    )
    rows = []
    for start in table.rows:
        for half in range(start.first // len(start.header.half), start.header.halves):
            row = _half(run, table, start, half, collective, ranks)
            if row is not None:
                rows.append(_with(row, algorithm, transport))
    _check_average(source, table, rows, notes)
    return rows


def _with(row: Row, algorithm: str, transport: str) -> Row:
    return replace(row, algorithm=algorithm, transport=transport) if algorithm else row


def _half(
    run: Run, table: _Table, start: Start, half: int, collective: str, ranks: int | None
) -> Row | None:
    width = len(start.header.half)
    mine = start.cells[half * width - start.first : (half + 1) * width - start.first]
    if len(mine) < width:
        return None
    figure = dict(zip(start.header.half, map(number, mine), strict=True))
    microseconds = figure.get("time", figure.get("cputime"))
    if microseconds is None:
        return None
    wrong = figure.get("#wrong", figure.get("wrong"))

    def scaled(key: str, factor: float) -> float | None:
        value = figure.get(key)
        return None if value is None else value * factor

    return Row(
        run=run,
        line=start.line,
        collective=collective,
        size=start.size,
        message=start.size,
        placement="in" if half else "out",
        ranks=ranks,
        count=start.count,
        dtype=names.dtype(start.dtype),
        op=start.op,
        root=start.root,
        time_s=microseconds * 1e-6,
        min_s=scaled("i_min", 1e-6),
        max_s=scaled("i_max", 1e-6),
        p99_s=scaled("i_p99", 1e-6),
        cv=scaled("i_cv%", 1e-2),
        algbw_bytes_per_s=scaled("algbw", 1e9),
        busbw_bytes_per_s=scaled("busbw", 1e9),
        wrong=None if wrong is None else int(wrong),
        error=figure.get("error"),
        iterations=table.iterations,
    )


def _contradicted(table: _Table, collective: str) -> bool:
    """Whether a name taken from further up cannot be this table's: it would need an operation."""
    needs = collective in ("allreduce", "reduce", "reduce_scatter")
    return needs and "redop" in table.rows[0].header.before and not any(s.op for s in table.rows)


def _inferred(table: _Table) -> str:
    """The collective by which columns are filled; "" where several fill the same ones."""
    start = max(table.rows, key=lambda s: s.size)
    width = names.element_size(names.dtype(start.dtype))
    shared = width is not None and start.count > 0 and start.size > start.count * width
    rooted = start.root is not None and start.root >= 0
    if start.op:
        if rooted:
            return "reduce"
        return "reduce_scatter" if shared else "allreduce"
    return "broadcast" if rooted and not shared else ""


def _inferred_ranks(table: _Table, collective: str) -> int | None:
    """From a size that is a multiple of one rank's count, else from busbw over algbw."""
    start = max(table.rows, key=lambda s: s.size)
    width = names.element_size(names.dtype(start.dtype))
    if width and start.count and start.size >= 2 * start.count * width:
        return start.size // (start.count * width)
    columns = start.header.half
    if "algbw" not in columns or "busbw" not in columns:
        return None
    algbw = number(start.cells[columns.index("algbw")])
    busbw = number(start.cells[columns.index("busbw")])
    return names.ranks_from_rates(collective, algbw or 0.0, busbw or 0.0)


def _check_average(source: str, table: _Table, rows: list[Row], notes: list[Note]) -> None:
    """The log's own mean over rows and placements must be that of what was read."""
    rates = [r.busbw_bytes_per_s / 1e9 for r in rows if r.busbw_bytes_per_s is not None]
    if table.average is None or not rates:
        return
    line, average = table.average
    mean = sum(rates) / len(rates)
    if not isclose(mean, average, rel_tol=0.01, abs_tol=0.006):
        text = f"the log's average busbw is {average:g} GB/s, that of its rows {mean:.4g}: rows are missing"
        notes.append(Note(source, line, text))
