"""Read tables that people shortened from nccl-tests: size, time, busbw and perhaps algbw.

Columns are separated as in Markdown or by commas, tabs or blanks; sizes are in bytes or as 8M, 1
GiB. Units come from the header or the line below it, otherwise they are those of nccl-tests. A row
is refused if no collective could have its rate for its size and time: a unit or digit is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from msgspec.structs import replace

from reports.readers import names
from reports.readers.gathered import Gathered, agrees, open_line, places
from reports.readers.text import FIGURE, Line
from reports.records.measurement import Measurement, Reading, Run

FORMAT = "nccl-tests-short"
_WORDS = {
    "size": "size", "bytes": "size", "message size": "size", "msg size": "size", "time": "time",
    "latency": "time", "algbw": "algbw", "busbw": "busbw", "bus bw": "busbw", "alg bw": "algbw",
    "bus bandwidth": "busbw", "algorithm bandwidth": "algbw",
}  # fmt: skip
_UNIT = re.compile(r"[(\[]\s*([A-Za-z/]{1,5})\s*[)\]]")
_TIME_S = {"us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "s": 1.0, "sec": 1.0, "ns": 1e-9}
_RATE = {"GB/s": 1e9, "GBps": 1e9, "MB/s": 1e6, "MBps": 1e6, "GiB/s": 2.0**30, "MiB/s": 2.0**20}
_SIZE = re.compile(r"(\d{1,19}(?:\.\d{1,3})?)\s?([KMGT]?)(i?)(B?)", re.ASCII)
_SIZED = re.compile(r"(?<=\d) (?=[KMGT]?i?B\b)")
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_NAMED = re.compile(r"\b[a-z]+(?:_[a-z]+)*_perf\b")
_HEADING = re.compile(r"^\s*(?:#+|\*\*)\s*(.*)")
_APART = re.compile(r"\b(all|reduce|to) (reduce|gather|to|all|scatter)\b")
_LONGEST_HEADER = 400
_LEAST_ROWS = 2


@dataclass(frozen=True)
class _Found:
    """A row with its cells as texts, by column."""

    line: int
    cells: Mapping[str, str]

    def rate(self, column: str, unit: float) -> float:
        """The value of a column in bytes per second."""
        return float(self.cells[column]) * unit


@dataclass
class _Table:
    """The columns and units of a table, and its rows so far."""

    line: int
    columns: tuple[str, ...]
    units: dict[str, str]
    collective: str
    program: str
    rows: list[_Found]

    def time_s(self) -> float:
        """The unit of the time column in seconds; 0 if unknown."""
        return _TIME_S.get(self.units.get("time", "us").lower(), 0.0)

    def rate(self, column: str) -> float:
        """The unit of a rate's column in bytes per second; 0 if unknown."""
        return _RATE.get(self.units.get(column, "GB/s"), 0.0)


def _split(text: str) -> list[str]:
    """Split a line into cells at bars or commas, otherwise at blanks."""
    if "|" in text:
        cells = text.strip().strip("|").split("|")
    elif "," in text:
        cells = text.split(",")
    else:
        cells = _SIZED.sub("", text.strip().removeprefix("#")).split()
    return [cell.strip().strip("*`") for cell in cells]


def _header(text: str) -> tuple[tuple[str, ...], dict[str, str]] | None:
    """Columns and their units from a header line; None for any other line."""
    low = text.lower()
    if len(text) > _LONGEST_HEADER or ("busb" not in low and "bus b" not in low):
        return None
    clean = _UNIT.sub(lambda unit: f"({unit[1]})", text)
    if "|" in clean or "," in clean:
        titles = _split(clean)
    else:
        titles = re.findall(r"(?:[A-Za-z]+ )?[A-Za-z]+ ?\([\w/]+\)|\S+", clean.replace("#", " "))
    columns, units = [], dict[str, str]()
    for title in titles:
        unit = _UNIT.search(title)
        word = _WORDS.get(_UNIT.sub("", title).strip().lower())
        if word is None or word in columns:
            return None
        columns.append(word)
        if unit:
            units[word] = unit[1]
    return (tuple(columns), units) if {"size", "time", "busbw"} <= set(columns) else None


def _bytes(cell: str) -> int | None:
    """A size such as 1048576, 1M, 1 MiB in bytes (K is 1024, as in nccl-tests), or None."""
    match = _SIZE.fullmatch(cell)
    if match is None:
        return None
    size = float(match[1]) * 1024.0 ** _POWER[match[2]]
    if not match[2] and "." not in match[1]:
        return int(match[1])
    return int(size) if size == int(size) and size < 2**63 else None


def read(source: str, lines: Sequence[Line]) -> Reading:
    """Read all shortened tables in a text."""
    gathered, tables = Gathered(source), list[_Table]()
    table: _Table | None = None
    program, last = "", open_line(lines)
    for line in lines:
        if "_perf" in line.text and (named := _NAMED.search(line.text)):
            program = named[0]
        elif heading := _HEADING.match(line.text):
            program = names.in_words(_APART.sub(r"\1-\2", heading[1].lower())) or program
        if header := _header(line.text):
            table = _Table(line.number, *header, names.collective(program), program, [])
            tables.append(table)
        elif table is not None and not _row(gathered, table, line, last):
            table = None
    number = 0
    for table in tables:
        if not table.rows:
            gathered.note(table.line, "a table's header with no row below it")
            continue
        for row in _rows(source, number, table):
            gathered.take(row.line, row) if isinstance(row, Measurement) else gathered.note(*row)
        number += 1
    return gathered.close()


def _row(gathered: Gathered, table: _Table, line: Line, last: int) -> bool:
    """Read a line below a header. Returns False if the table has ended."""
    text = line.text
    if not text.strip() or not text.strip(" \t|-:=+"):
        return bool(text.strip()) or not table.rows
    cells = _split(text)
    if not table.rows and not re.search(r"\d", text):
        units = _UNIT.findall(text)
        if len(units) == len(table.columns):
            table.units |= dict(zip(table.columns, units, strict=True))
            return True
        return False
    if _bytes(cells[0]) is None and not (table.columns[0] != "size" and cells[0][:1].isdigit()):
        return False
    reason = _reason(table, cells)
    if not reason and line.number == last and not text.rstrip().endswith("|"):
        before = table.rows[-1].cells[table.columns[-1]] if table.rows else ""
        if not before or places(cells[-1]) != places(before) or not places(before):
            reason = "the text ends inside this line, and its last figure may be cut"
    if reason:
        gathered.note(line.number, f"row not read: {reason}")
    else:
        table.rows.append(_Found(line.number, dict(zip(table.columns, cells, strict=True))))
    return True


def _reason(table: _Table, cells: Sequence[str]) -> str:
    """Why cells are no row; empty if they are one."""
    if len(cells) != len(table.columns):
        return f"{len(cells)} figures for {len(table.columns)} columns"
    for column, cell in zip(table.columns, cells, strict=True):
        if column == "size":
            if _bytes(cell) is None:
                return f"{cell!r} is no size"
        elif not FIGURE.fullmatch(cell):
            return f"{cell!r} is no figure ({column})"
        elif column == "time" and not float(cell) > 0:
            return "a time of 0"
    units = (unit for column, unit in table.units.items() if column != "size")
    odd = next((unit for unit in units if unit.lower() not in _TIME_S and unit not in _RATE), "")
    return f"{odd!r} is no unit that is known" if odd else ""


def _rows(source: str, number: int, table: _Table) -> list[Measurement | tuple[int, str]]:
    """The consistent rows; for each other row (line, reason)."""
    collective = table.collective if table.collective in names.KNOWN else ""
    collective = collective or names.in_file_name(source)
    run = Run(source, number, FORMAT, table.program or "nccl-tests, shortened", "nccl-tests")
    completed, factors = [], []
    for one in table.rows:
        size, seconds = _bytes(one.cells["size"]) or 0, float(one.cells["time"]) * table.time_s()
        busbw = one.rate("busbw", table.rate("busbw"))
        completed.append((one, size, seconds, busbw))
        if size and places(one.cells["busbw"]) and float(one.cells["busbw"]) >= 1:
            factors.append(busbw * seconds / size)
    usual = median(factors) if len(factors) > _LEAST_ROWS else None
    rows: list[Measurement | tuple[int, str]] = []
    for one, size, seconds, busbw in completed:
        reason = _contradiction(table, one, size, seconds, usual)
        if reason:
            rows.append((one.line, f"row not read: {reason}"))
            continue
        algbw = one.rate("algbw", table.rate("algbw")) if "algbw" in one.cells else None
        rows.append(
            Measurement(
                run=run,
                line=one.line,
                collective=collective,
                size=size,
                message=size,
                time_s=seconds,
                algbw_bytes_per_s=size / seconds if algbw is None else algbw,
                busbw_bytes_per_s=busbw,
            )
        )
    return _ranked(collective, rows)


def _contradiction(
    table: _Table, one: _Found, size: int, seconds: float, usual: float | None
) -> str:
    """Why a row is inconsistent in itself or with the table's other rows; empty if it is not."""
    rate = size / seconds
    digit = 0.51 * 10.0 ** -places(one.cells["time"]) * table.time_s() / seconds
    slack = 0.01 + digit
    if "algbw" in one.cells and not agrees(one.cells["algbw"], rate, table.rate("algbw"), slack):
        return "algbw, size and time contradict each other"
    unit, busbw = table.rate("busbw"), one.rate("busbw", table.rate("busbw"))
    rounding = 0.51 * 10.0 ** -places(one.cells["busbw"]) * unit
    if not rate * (0.49 - slack) - rounding <= busbw <= rate * (2.0 + slack) + rounding:
        return f"busbw is {busbw / rate:.3g} times size / time, which no collective has"
    if usual is not None and not agrees(one.cells["busbw"], rate * usual, unit, slack + 0.01):
        return f"busbw is {busbw / rate:.3g} times size / time, in the other rows {usual:.3g}"
    return ""


def _ranked(
    collective: str, rows: list[Measurement | tuple[int, str]]
) -> list[Measurement | tuple[int, str]]:
    """Set the rank count of rows, inferred from the rates of the fastest one."""
    read_ = [row for row in rows if isinstance(row, Measurement)]
    best = max(read_, key=lambda row: row.busbw_bytes_per_s or 0.0, default=None)
    if best is None or best.size is None or not best.time_s:
        return rows
    algbw, busbw = best.size / best.time_s / 1e9, (best.busbw_bytes_per_s or 0.0) / 1e9
    ranks = names.ranks_from_rates(collective, algbw, busbw)
    return [replace(row, ranks=ranks) if isinstance(row, Measurement) else row for row in rows]
