"""Read tables of MPI benchmarks: OSU, the Intel MPI Benchmarks (IMB), and oneCCL's.

OSU: latency, bandwidth, barrier, non-blocking; ``-f`` and ``-T``. IMB: every table with
``#repetitions`` and times. oneCCL: ``#bytes`` is one rank's contribution, so an all-gather or
all-to-all handles P times as much; the last column is the deviation over ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor
from typing import Any

from msgspec.structs import replace

from reports.readers import names
from reports.readers.gathered import Gathered, Printed, figure, fixed, message_row, signed, span
from reports.readers.text import Line
from reports.records.measurement import Measurement, Reading, Run
from reports.records.metrics import PURE

FORMAT = "oneccl"
#: A column that oneCCL's header has and IMB's has not.
MARK = "stddev[%]"
_ONECCL_NAME = re.compile(r"#\s*Benchmarking: ?(\S[\w ,]*)")
_ONECCL_RANKS = re.compile(r"#\s*#?processes:? ?=?\s*(\d{1,7})\b")
_ONECCL_FACT = re.compile(r"^\s*(datatype|reduction):\s*(\w+)\s*$")
_ONECCL_TIMES = {"t_min[usec]": "min_s", "t_max[usec]": "max_s", "t_avg[usec]": "time_s"}


def read_oneccl(source: str, lines: Sequence[Line]) -> Reading:
    """Read all tables of oneCCL's benchmark in a log."""
    gathered, columns, number = Gathered(source), list[str](), 0
    name, ranks, facts = "", None, dict[str, str]()
    run = Run(source, 0, FORMAT)
    for line in lines:
        if named := _ONECCL_NAME.search(line.text):
            name, columns = named[1].strip(), []
        elif processes := _ONECCL_RANKS.search(line.text):
            ranks = int(processes[1])
        elif fact := _ONECCL_FACT.match(line.text):
            facts[fact[1]] = fact[2]
        elif MARK in line.text and line.text.lstrip().startswith("#bytes"):
            columns = line.text.split()
            gathered.header(line.number)
            run = Run(source, number, FORMAT, f"oneCCL {name}".strip(), "oneCCL benchmark")
            number += 1
        elif columns and re.match(r"\s*\d+\s", line.text):
            gathered.take(line.number, _oneccl_row(run, line, columns, name, ranks, facts))
        elif columns and line.text.lstrip().startswith("#"):
            columns = []
    return gathered.close()


def _oneccl_row(
    run: Run, line: Line, columns: list[str], name: str, ranks: int | None, facts: dict[str, str]
) -> Measurement | str:
    tokens = line.text.split()
    if len(tokens) != len(columns):
        return f"{len(tokens)} figures for {len(columns)} columns"
    cells = dict(zip(columns, tokens, strict=True))
    counts = [cells.get("#bytes", ""), cells.get("#repetitions", "")]
    if not all(cell.isdecimal() and len(cell) < 19 for cell in counts):
        return f"{' and '.join(counts)!r} are no size and no number of repetitions"
    times: dict[str, Any] = {}
    for column, cell in cells.items():
        if column.startswith("#"):
            continue
        value = fixed(cell, 2)
        if value is None:
            return f"{cell!r} is no figure ({column})"
        if column in _ONECCL_TIMES:
            times[_ONECCL_TIMES[column]] = value * 1e-6
    if set(times) != set(_ONECCL_TIMES.values()):
        return "no column of a time"
    if not times["min_s"] - 1e-8 <= times["time_s"] <= times["max_s"] + 1e-8:
        return "the mean time is not between the least and the largest"
    collective = names.collective(name) if " " not in name else name
    reduces = collective in ("allreduce", "reduce", "reduce_scatter")
    return message_row(
        run,
        line.number,
        collective,
        int(counts[0]),
        ranks,
        dtype=names.dtype(facts.get("datatype", "")),
        op=facts.get("reduction", "") if reduces else "",
        iterations=int(counts[1]),
        **times,
    )


_TITLE = re.compile(
    r"^\s*(?:# ?)?(?:OSU|OMB-Py) (\S+) (.+?) Test(?: v?([\w.+-]+)| \(Version ([\w.]+)\))?\s*$"
)
_DATATYPE = re.compile(r"# Datatype:\s*(\w+)")
# Above the table of osu_mbw_mr; further ranks are idle.
_PAIRS = re.compile(r"# \[ pairs: (\d{1,7}) \]")
_COMMAND = re.compile(r"\b(?:mpirun|mpiexec|srun|orterun|prun|flux run|jsrun|aprun)\b.*\s(\S+)")
_RANKS = re.compile(r"(?:^|\s)(?:-np|-n|--np|--ntasks[= ]?|-ntasks)\s*=?\s*(\d{1,7})\b")
_NODES = re.compile(r"(?:^|\s)(?:-N|--nodes)\s*=?\s*(\d{1,6})\b")
_PER_NODE = re.compile(r"(?:^|\s)(?:--ntasks-per-node)\s*=?\s*(\d{1,6})\b")
# Intel MPI's line for each rank at start-up (I_MPI_DEBUG): rank, process, host, its cores.
_STARTED = re.compile(r"MPI startup\(\): (\d{1,7})\s+\d+\s+\S+\s+(?:\{|\d|$)")
_COLUMN = re.compile(
    r"(?:Transmit )?Size|Iterations|Validation|Messages/s|MB/s|[A-Za-z][\w.%]*(?: "
    r"[A-Za-z][\w.]*)*\s?\((?:us|MB/s|%)\)"
)
_FAILED = "validation failed; of how many elements is not said, so one is counted as wrong"
_MULTI = re.compile("multi", re.IGNORECASE)
_POINT_TO_POINT = {"latency", "multithreadedlatency", "bandwidth", "bidirectional_bandwidth"}
_OSU_SECONDS = {"avglatency": "time_s", "latency": "time_s", "minlatency": "min_s"}
_OSU_SECONDS |= {"maxlatency": "max_s", "p99taillat": "p99_s"}
# For non-blocking collectives; overall includes OSU's own computation.
_OSU_SECONDS |= {"purecomm": "time_s", "mincomm": "min_s", "maxcomm": "max_s"}
_OSU_SECONDS |= {"overall": "overall_s", "compute": "compute_s"}
_OSU_RATES = {"messagess": ("messages_per_s", 1.0), "mbs": ("bandwidth_bytes_per_s", 1e6)}
_OSU_RATES |= {"bandwidth": ("bandwidth_bytes_per_s", 1e6)}


def launched_ranks(text: str) -> int | None:
    """The rank count from a launcher's command line or Intel MPI's list of ranks, else None."""
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


def _osu_columns(text: str) -> list[str] | None:
    """The columns of a header line, None for any other line."""
    if not re.match(r"\s*#?\s*(?:Size|Avg|Overall)\b", text) or "=" in text:
        return None
    names = _COLUMN.findall(text)
    return names if names and any(c != "Size" for c in names) else None


class _OsuTable:
    """State of the table of one benchmark while it is read."""

    def __init__(self, source: str, number: int, title: re.Match[str], ranks: int | None) -> None:
        model, name, version, old_version = title.groups()
        plain, _, accelerator = model.partition("-")
        library, _, operation = plain.partition("_")
        self.collective = _osu_collective(operation, name)
        two = names.blocking(self.collective) in _POINT_TO_POINT
        two = two or (operation != "" and not _MULTI.match(name))
        self.ranks = 2 if two else ranks
        program = f"OSU {model} {name}"
        version = f"OSU {version or old_version or ''}".strip()
        self.run = Run(source, number, "osu", program, version)
        self.transport = (accelerator if library == "MPI" and accelerator else library).lower()
        self.dtype = ""
        self.columns: list[str] = []

    def row(self, line: Line) -> Measurement | str | None:
        """The row in a line, the reason why a row cannot be read, or None for other lines."""
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
                fields["wrong"] = int(verdict == "fail")  # at least 1: the log has no number
                continue
            key = _key(name)
            value = signed(cell) if key == "overlap" else figure(cell)
            if value is None:
                return f"{cell!r} is no figure ({name})"
            if key == "iterations":
                fields["iterations"] = int(value)
            elif key == "overlap":
                fields["overlap"] = value * 1e-2
            elif key in _OSU_RATES:
                column, unit = _OSU_RATES[key]
                fields[column] = value * unit
            elif key in _OSU_SECONDS:
                fields[_OSU_SECONDS[key]] = value * 1e-6
        if "overall_s" in fields:
            fields["time_of"] = PURE
        return message_row(self.run, line.number, self.collective, int(size), self.ranks, **fields)

    def left_out(self) -> str:
        """A note on the columns that are not read; empty if there are none."""
        known = {*_OSU_SECONDS, *_OSU_RATES, "size", "iterations", "validation", "overlap"}
        names = [name for name in self.columns if _key(name) not in known]
        return f"columns left out: {', '.join(names)}" if names else ""


def _osu_collective(operation: str, title: str) -> str:
    """The collective in a title; for other benchmarks (``MPI_Get latency``) the whole name."""
    if operation or _MULTI.match(title):
        return names.collective(f"{operation} {title}")
    title, persistent = re.subn(r" ?\bPersistent\b ?", " ", title, flags=re.I)
    name = re.sub(r" (?:Latency|Personalized Exchange)\b", "", f" {title.strip()}").strip()
    alone = not name or name.lower() == "non-blocking"
    return names.collective("persistent " * persistent + (title.strip() if alone else name))


def read_osu(source: str, lines: Iterable[Line]) -> Reading:
    """Read all OSU tables in a log. Rank counts come from a launcher's line above, if any."""
    gathered = Gathered(source)
    table: _OsuTable | None = None
    number, ranks = 0, None
    for line in lines:
        ranks = launched_ranks(line.text) or ranks
        if title := _TITLE.search(line.text):
            gathered.close()
            table = _OsuTable(source, number, title, ranks)
            number += 1
        elif table is None:
            continue
        elif line.text.lstrip().startswith(("#---", "# Benchmarking", "# nThread", "# nccl-tests")):
            gathered.close()
            table = None
        elif datatype := _DATATYPE.search(line.text):
            table.dtype = names.dtype(datatype.group(1))
        elif pairs := _PAIRS.search(line.text):
            table.ranks = 2 * int(pairs.group(1))
        elif columns := _osu_columns(line.text):
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


_SUITE = re.compile(r"#\s*Intel ?\(R\) MPI Benchmark(?:s| Suite)?,? ?(?:V(?:ersion)? ?)?([\w. ]+)?")
# oneCCL writes a colon; its point-to-point tables have columns of the same names.
_NAME = re.compile(r"#\s*Benchmarking(:?)\s+(\S+)")
_FACTS = {
    "ranks": re.compile(r"#\s*#processes\s*=\s*(\d{1,7})|#\s*\(\s*\d+ groups of (\d{1,7}) proc"),
    "reductions": re.compile(r"#\s*MPI_Datatype for reductions\s*:\s*(\w+)"),
    "dtype": re.compile(r"#\s*MPI_Datatype\s*:\s*(\w+)"),
    "op": re.compile(r"#\s*MPI_Op\s*:\s*MPI_(\w+)"),
}
# IMB-EXT measures most of its benchmarks twice, under the same name.
_AGGREGATE = re.compile(r"#\s*MODE:\s*AGGREGATE")
_REDUCING = ("allreduce", "reduce", "reduce_scatter", "iallreduce", "ireduce", "ireduce_scatter")
_IMB_TIMES = {"t[usec]": "time_s", "t_avg[usec]": "time_s", "t_min[usec]": "min_s"}
_IMB_TIMES |= {"t_max[usec]": "max_s"}
# For non-blocking collectives; t_ovrl includes IMB's own computation.
_IMB_TIMES |= {"t_pure[usec]": "time_s", "t_ovrl[usec]": "overall_s", "t_CPU[usec]": "compute_s"}
_MBYTES = "Mbytes/sec"
_IMB_RATES = {_MBYTES: ("bandwidth_bytes_per_s", 1e6), "Msg/sec": ("messages_per_s", 1.0)}
_OVERLAP = "overlap[%]"
_COUNTS = {"defects": "wrong", "#repetitions": "iterations"}


class _ImbState:
    """What the lines above a table of IMB say: version, benchmark, facts and columns."""

    def __init__(self) -> None:
        self.version = ""
        self.benchmark = ""
        #: True below the title of another program's table.
        self.foreign = False
        self.facts: dict[str, str] = {}
        self.columns: list[str] = []

    def take(self, text: str) -> bool:
        """Store the fact in a line. Returns False if the line has none."""
        for name, pattern in _FACTS.items():
            if match := pattern.search(text):
                self.facts[name] = match.group(match.lastindex or 1)
                return True
        if _AGGREGATE.search(text) and not self.benchmark.endswith("_aggregate"):
            self.benchmark += "_aggregate"
            return True
        if suite := _SUITE.search(text):
            self.version = f"IMB {(suite.group(1) or '').strip()}".strip()
        return suite is not None


def read_imb(source: str, lines: Iterable[Line]) -> Reading:
    """Read all IMB tables in a log. IMB counts one rank's message; ``size`` is the collective's."""
    gathered = Gathered(source)
    state, number, run = _ImbState(), -1, Run(source, 0, "imb")
    rated: dict[int, list[Mapping[str, str]]] = {}  # by run, the cells of rows with Mbytes/sec
    for line in lines:
        if name := _NAME.search(line.text):
            state.benchmark, state.columns = name.group(2), []
            state.foreign = name.group(1) != ""
            state.facts.pop("ranks", None)
            continue
        if state.take(line.text):
            continue
        if "#repetitions" in line.text and MARK not in line.text and not state.foreign:
            text = re.sub(r"(?<=\S)#", " #", line.text).replace("overlap [%]", _OVERLAP)
            state.columns, number = text.split(), number + 1
            gathered.header(line.number)
            known = {"#bytes", _OVERLAP, *_IMB_TIMES, *_COUNTS, *_IMB_RATES}
            if left_out := [name for name in state.columns if name not in known]:
                gathered.note(line.number, f"columns left out: {', '.join(left_out)}")
            if not state.benchmark:
                gathered.note(line.number, "no line names the benchmark of this table")
            run = Run(source, number, "imb", f"IMB {state.benchmark}".strip(), state.version)
            continue
        if line.text.lstrip().startswith("#"):
            state.columns = []
        tokens = line.text.split()
        if state.columns and tokens and tokens[0].isdecimal():
            gathered.take(line.number, _imb_row(run, line.number, tokens, state))
            if _MBYTES in state.columns:
                cells = dict(zip(state.columns, tokens, strict=False))
                rated.setdefault(number, []).append(cells)
    binary = {number for number, rows in rated.items() if _has_binary_megabytes(rows)}
    gathered.rows = [_in_binary(r) if r.run.number in binary else r for r in gathered.rows]
    return gathered.close()


def _in_binary(row: Measurement) -> Measurement:
    rate = row.bandwidth_bytes_per_s
    return row if rate is None else replace(row, bandwidth_bytes_per_s=rate * 2**20 / 1e6)


def _has_binary_megabytes(rows: Iterable[Mapping[str, str]]) -> bool:
    """True if a table's ``Mbytes/sec`` count 2^20 bytes, as in IMB up to version 4; else 10^6.

    A rate is a whole multiple of size / largest time: 2 for Sendrecv, 4 for Exchange. So each row's
    multiple is computed in both units, and within the rounding of the printed figures. Rows where
    it can be whole in only one of the two units decide; without any the unit is 10^6.
    """
    votes = 0
    for cells in rows:
        multiple = _multiple(cells)
        if multiple is not None:
            votes += _holds_whole(multiple.scaled(2**20 / 1e6)) - _holds_whole(multiple)
    return votes > 0


def _multiple(cells: Mapping[str, str]) -> Printed | None:
    """How many times size / time the rate of a row is, in units of 10^6; None if unknown."""
    rate, time = span(cells.get(_MBYTES, "")), None
    for column in ("t_max[usec]", "t[usec]"):
        time = time or span(cells.get(column, ""))
    size = figure(cells.get("#bytes", ""))
    messages = span(cells.get("Msg/sec", ""))
    if time is None and messages is not None and messages.low > 0:
        time = Printed(1e6 / messages.high, 1e6 / messages.low)
    if rate is None or time is None or not size:
        return None
    return Printed(rate.low * time.low / size, rate.high * time.high / size)


def _holds_whole(interval: Printed) -> bool:
    """True if a positive whole number is in the interval."""
    return floor(interval.high) >= max(1, ceil(interval.low))


def _imb_row(run: Run, line: int, tokens: list[str], state: _ImbState) -> Measurement | str:
    if len(tokens) < len(state.columns):
        return f"{len(tokens)} figures for {len(state.columns)} columns"
    figures: dict[str, float] = {}
    for column, cell in zip(state.columns, tokens, strict=False):
        value = signed(cell) if column == _OVERLAP else figure(cell)
        if value is None:
            return f"{cell!r} is no figure ({column})"
        figures[column] = value
    fields: dict[str, Any] = {
        _IMB_TIMES[c]: v * 1e-6 for c, v in figures.items() if c in _IMB_TIMES
    }
    fields |= {_COUNTS[c]: int(v) for c, v in figures.items() if c in _COUNTS}
    fields |= {f: figures[c] * unit for c, (f, unit) in _IMB_RATES.items() if c in figures}
    if _OVERLAP in figures:
        fields |= {"overlap": figures[_OVERLAP] * 1e-2, "time_of": PURE}
    collective = names.collective(re.sub(r"^Multi-", "", state.benchmark))
    get, reduces = state.facts.get, collective in _REDUCING
    return message_row(
        run,
        line,
        collective,
        int(figures.get("#bytes", 0)),
        int(get("ranks", 0)) or None,
        # IMB_reduce_scatter_block.c: each rank receives #bytes; OSU's test counts the whole vector.
        per_rank=state.benchmark.lower().endswith("reduce_scatter_block"),
        transport="mpi",
        dtype=names.dtype(get("reductions" if reduces else "dtype", "")),
        op=get("op", "").lower() if reduces else "",
        **fields,
    )
