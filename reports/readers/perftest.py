"""Read logs of perftest (``ib_write_bw``, ``ib_read_lat``, …): bandwidths and latencies.

perftest counts bandwidth in MiB/s, even if its header says MB/sec, and in Gb/s with
``--report_gbits``. It prints 2 decimals, or 6 for small rates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from reports.readers.gathered import Gathered, agrees, fixed, message_row
from reports.readers.text import Line
from reports.records.measurement import Measurement, Reading, Run

FORMAT = "perftest"
_TITLE = re.compile(
    r"^\s*(?P<verb>(?:RDMA_)?(?:Write|Read|Send|Atomic))(?P<imm>_imm)?(?: (?:CMP_AND_SWAP|"
    r"FETCH_AND_ADD))?(?P<both> Bidirectional)?(?: Post List)? (?P<what>BW|Latency)"
    r"(?: \w+)* Test\s*$",
    re.IGNORECASE,
)
_COMMAND = re.compile(r"\bib_(?P<verb>write|read|send|atomic)_(?P<what>bw|lat)\b(?P<rest>.*)")
_BOTH = re.compile(r"(?:^|\s)(?:-[a-zA-Z]*b|--bidirectional)(?=\s|$)")
_FACT = re.compile(r"\b(Device|Connection type|Link type)\s*:\s*(\S+)")
_COLUMN = re.compile(
    r"#(?:bytes|iterations|sl)|BW (?:peak|average|Port\d)\s?\[[^\]]+\]|MsgRate(?: Port\d)?\s?"
    r"\[Mpps\]|t_\w+\s?\[\w+\]|[\d.]+% percentile\s?\[\w+\]|CPU_Util\s?\[%+\]|tps average"
)
_UNITS = {"MB/sec": 2.0**20, "MiB/sec": 2.0**20, "Gb/sec": 0.125e9}
_TIMES = {"t_min": "min_s", "t_max": "max_s", "99% percentile": "p99_s"}


class _Table:
    """The facts from the lines above a table, and its columns."""

    def __init__(self) -> None:
        self.verb, self.what, self.both = "", "", False
        self.facts: dict[str, str] = {}
        self.columns: list[str] = []
        self.run = Run("", 0, FORMAT)

    def named(self, verb: str, what: str, both: bool) -> None:
        """Store the facts of a test from its title or command line."""
        self.verb = verb.lower().removeprefix("rdma_")
        self.what = "bw" if what.lower() == "bw" else "lat"
        self.both, self.facts, self.columns = both, {}, []

    def name(self) -> str:
        """The name of the test in rows, such as ``write_bandwidth`` or ``read_latency``."""
        bandwidth = any(column.startswith("BW") for column in self.columns)
        what = "bandwidth" if bandwidth else "latency"
        same = (self.what == "bw") == bandwidth
        verb = self.verb if same else ""
        both = "bidirectional" if self.both and bandwidth and same else ""
        return "_".join(word for word in (verb, both, what) if word)

    def begin(self, source: str, number: int) -> None:
        """Make the run of the rows that follow a header; ``number``: of the run in the file."""
        program = f"ib_{self.verb}_{self.what}" if self.verb else "perftest"
        devices = (self.facts["Device"],) if "Device" in self.facts else ()
        self.run = Run(source, number, FORMAT, program, "perftest", devices=devices)


def _columns(text: str) -> list[str]:
    """The columns in a header line, without the blank before units; empty for other lines."""
    if not text.lstrip().startswith("#bytes"):
        return []
    names = [re.sub(r"\s\[", "[", column) for column in _COLUMN.findall(text)]
    rest = re.sub(r"\s", "", _COLUMN.sub("", text))
    known = any(column.startswith(("BW average", "t_typical", "t_avg")) for column in names)
    return names if known and not rest else []


def read(source: str, lines: Sequence[Line]) -> Reading:
    """Read all tables in a log. The outputs of a test's two sides, if both are there, are two."""
    gathered, table, number = Gathered(source), _Table(), 0
    for line in lines:
        if title := _TITLE.match(line.text):
            table.named(title["verb"] + (title["imm"] or ""), title["what"], bool(title["both"]))
        elif command := _COMMAND.search(line.text):
            table.named(command["verb"], command["what"], bool(_BOTH.search(command["rest"])))
        elif columns := _columns(line.text):
            table.columns = columns
            table.begin(source, number)
            number += 1
            gathered.header(line.number)
        elif table.columns and re.match(r"\s*\d+\s", line.text):
            gathered.take(line.number, _row(table, line))
        elif facts := _FACT.findall(line.text):
            table.facts |= dict(facts)
        elif line.text.strip() and not table.columns:
            continue
        elif line.text.lstrip().startswith("--"):
            gathered.close()
            table.columns = []
    return gathered.close()


def _row(table: _Table, line: Line) -> Measurement | str:
    tokens = line.text.split()
    if len(tokens) != len(table.columns):
        return f"{len(tokens)} figures for {len(table.columns)} columns"
    cells = dict(zip(table.columns, tokens, strict=True))
    for name in ("#bytes", "#iterations"):
        if not (cells[name].isdecimal() and len(cells[name]) < 19) if name in cells else True:
            return f"{cells.get(name)!r} is no whole number ({name})"
    size, fields = int(cells["#bytes"]), dict[str, Any]()
    fields["iterations"] = int(cells["#iterations"])
    figures: dict[str, float] = {}
    for column, cell in cells.items():
        if column.startswith("#"):
            continue
        value = fixed(cell, 2, 6)
        if value is None:
            return f"{cell!r} is no figure ({column})"
        figures[column] = value
    for column, value in figures.items():
        name, _, unit = column.rstrip("]").partition("[")
        if name == "BW average":
            if unit not in _UNITS:
                return f"a bandwidth in {unit}"
            fields["bandwidth_bytes_per_s"] = value * _UNITS[unit]
            if not _as_messages(cells[column], figures.get("MsgRate[Mpps]"), size, _UNITS[unit]):
                return "bandwidth and message rate contradict each other"
        elif column == "MsgRate[Mpps]":
            fields["messages_per_s"] = value * 1e6
        elif name.startswith("t_") or name in _TIMES:
            if unit != "usec":
                return f"a latency in {unit}; run without --report-cycles"
            if name in _TIMES:
                fields[_TIMES[name]] = value * 1e-6
    fields |= _typical(figures)
    if not fields.get("min_s", 0.0) <= fields.get("time_s", 0.0) <= fields.get("max_s", 1e9):
        return "the typical latency is not between the least and the largest"
    return message_row(table.run, line.number, table.name(), size, 2, transport="rdma", **fields)


def _typical(figures: dict[str, float]) -> dict[str, Any]:
    """The time of a latency test: the median, or the mean if a test by duration has no median."""
    typical, mean = figures.get("t_typical[usec]"), figures.get("t_avg[usec]")
    deviation = figures.get("t_stdev[usec]")
    row_figures: dict[str, Any] = {}
    if typical is not None:
        row_figures = {"time_s": typical * 1e-6, "statistic": "median"}
    elif mean is not None:
        row_figures = {"time_s": mean * 1e-6, "statistic": "mean"}
    if mean and deviation is not None:
        row_figures["cv"] = deviation / mean
    return row_figures


def _as_messages(printed: str, millions: float | None, size: int, unit: float) -> bool:
    """True if the bandwidth fits the message rate, counting one or both directions."""
    if millions is None:
        return True
    slack = 0.02 + (0.6e-6 / millions if millions else 1e9)
    return any(agrees(printed, ways * millions * 1e6 * size, unit, slack) for ways in (1, 0.5, 2))
