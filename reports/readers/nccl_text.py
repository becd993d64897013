"""Reads nccl-tests' output with several runs, interleaved ranks and foreign messages in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from reports.readers import names
from reports.readers.nccl_lines import Start, cells, header, row_start, without_messages
from reports.readers.nccl_tables import PartialTable, rows_of
from reports.readers.text import Line
from reports.records.measurement import Measurement, Note, Reading

_DEVICE = re.compile(
    r"Rank\s+(\d{1,7})\s+(?:Group\s+(\d{1,9})\s+)?Pid\s+\d+ on\s+(\S+)\s+device\s+\d+ "
    r"\[[^\]]*\]\s*(.*)"
)
_AS_ABOVE = re.compile(r"Using devices as above: \d{1,7} ranks, group (\d{1,9})")
_STARTING = re.compile(r"Collective test (?:starting|concluded): (.+)")
_PERF = re.compile(r"\b([a-z]+(?:_[a-z]+)*)_perf(?:_mpi)?\b")
# A command after a shell's prompt: a script around the tests is told which collective to run.
_PROMPT = re.compile(r"^(?:\S+@\S+[#$]|\$) (.+)")
_LIBRARY = re.compile(r"(?:^#?\s*|INFO )([NR]CCL) version ?:? ?(\d\S+)")
_VERSION = re.compile(r"nccl-tests version|busbar version|rccl-tests: Version")
_HEADER_LIBRARY = re.compile(r"\bnccl-library=(\d{4,6})\b")
_ITERATIONS = re.compile(r"(?<!warmup )iters: (\d{1,9})\b")
_NRANKS = re.compile(r"\bnranks[ =](\d{1,7})\b")
_CALLED = re.compile(r"NCCL INFO (\w+): opCount ")
_SIZES = re.compile(r"minBytes (\d{1,19}) maxBytes (\d{1,19}) step: (\d{1,19})\((factor|bytes)\)")
_AVERAGE = re.compile(
    r"Avg bus bandwidth\s*:\s*(\d{1,18}(?:\.\d{0,18})?(?:e[+-]?\d{1,2})?)(?![\w.])"
)
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d{1,18})")
# What the lines below a table tell of it beside that.
_TOLD = re.compile(r"^\s*# *(Bitwise mismatches\s*:\s*[1-9]\d{0,17}|error: .{1,200})")
_HOST = re.compile(r"^([\w.-]+):\d+:\d+ (?:\[[-\d]+\] )?(?:\S+ ){0,2}NCCL ")


class _Stream:
    """The tables of one rank's output, or of a file that does not say whose it is."""

    def __init__(self, source: str, notes: list[Note]) -> None:
        self.tables: list[PartialTable] = []
        self._source, self._notes = source, notes
        self._table = PartialTable()
        self._pending: Start | None = None
        self._listed: dict[int, PartialTable] = {}  # by group, the table that lists its ranks

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
            else row_start(line.number, text, self._table.header, self._above())
        )
        if isinstance(start, str):
            self._flush()
            self._table.refused += 1
            self.note(line.number, f"row not read: {start}")
        elif start is not None:
            self._flush()
            if not self._table.rows and not self._table.program:
                self._table.program = program
            self._pending = start
            if len(start.cells) + start.first >= start.header.cells:
                self._flush()

    def _above(self) -> Start | None:
        """The row above, where there is one."""
        return self._pending or (self._table.rows[-1] if self._table.rows else None)

    def _continued(self, text: str) -> bool:
        words = cells(text)
        if not words or self._pending is None:
            return False
        room = self._pending.header.cells - self._pending.first - len(self._pending.cells)
        if len(words) > room:
            return False
        self._pending.cells += words
        if len(words) == room:
            self._flush()
        return True

    def _flush(self) -> None:
        """Keep the row that was being read, or say what it lacks."""
        start, self._pending = self._pending, None
        if start is None:
            return
        width = len(start.header.half)
        if len(start.cells) < width:
            self._table.refused += 1
            self.note(start.line, f"row of {start.size} B not read: its figures are missing")
            return
        if len(start.cells) % width:
            self._table.refused += 1
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
        self._table = PartialTable()

    def _comment(self, line: Line, program: str) -> bool:
        """Read a line outside the rows. Returns whether nothing else needs to look at it."""
        text, table = line.text, self._table
        columns = header(text)
        opens = (
            columns
            or ("nThread " in text and "minBytes" in text)
            or "nccl-tests version" in text
            or "test starting" in text
        )
        # A run that failed leaves its devices, or its header, without a row below them.
        failed = not columns and (table.header or table.ranks)
        if opens and (table.rows or self._pending or failed):
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
            self._listed[int(group or 0)] = table
            return True
        above = _AS_ABOVE.search(text)
        if above and (listed := self._listed.get(int(above.group(1)))):
            table.ranks = {int(above.group(1)): listed.ranks[int(above.group(1))]}
            table.hosts, table.devices = listed.hosts, listed.devices
            return True
        average = _AVERAGE.search(text)
        if average:
            self._flush()
            table.average = (line.number, float(average.group(1)))
            return True
        bounds = _BOUNDS.search(text)
        if bounds:
            self._flush()
            if int(bounds.group(1)):
                table.out_of_bounds = (line.number, int(bounds.group(1)))
            return True
        stated = _TOLD.match(text)
        if stated:
            self.note(line.number, f"the log says: {' '.join(stated.group(1).split())}")
        self._facts(text)
        return False

    def _facts(self, text: str) -> None:
        table = self._table
        starting = _STARTING.search(text)
        if starting:
            table.program = starting.group(1).strip()
        if _VERSION.search(text):
            table.version = text.lstrip("# ").strip()
            library = _HEADER_LIBRARY.search(text)
            if library and not table.library:
                table.library = f"NCCL {names.nccl_version(int(library.group(1)))}"
        library = _LIBRARY.search(text)
        if library:
            table.library = " ".join(library.groups())
        if "nThread" in text:
            iterations = _ITERATIONS.search(text)
            table.iterations = int(iterations.group(1)) if iterations else None
            table.announced = _sizes(text)
        called = _CALLED.search(text)
        if called and not table.program:
            table.program = called.group(1)
        nranks = _NRANKS.search(text)
        if nranks:
            table.nranks = max(int(nranks.group(1)), table.nranks or 0)


def _sizes(text: str) -> int | None:
    """How many sizes ``minBytes … maxBytes … step`` asks for; None where the line is another."""
    match = _SIZES.search(text)
    if not match:
        return None
    low, high, step = map(int, match.groups()[:3])
    if match.group(4) == "bytes":
        return 1 + (high - low) // step if step and high >= low else 1
    count, size = 1, low
    while step > 1 and 0 < size * step <= high:
        count, size = count + 1, size * step
    return count


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
        elif prompt := _PROMPT.match(line.text):
            program = names.in_words(prompt.group(1))
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
    rows: list[Measurement] = []
    guesses: dict[str, list[int]] = {}
    for n, table in enumerate(tables):
        rows += rows_of(source, n, table, notes, guesses)
    for text, where in guesses.items():
        more = f" (and {len(where) - 1} tables more)" if len(where) > 1 else ""
        notes.append(Note(source, where[0], text + more))
    return Reading(rows, sorted(notes, key=lambda note: note.line))
