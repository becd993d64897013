"""Rows and notes of a log while it is read, and whether figures are whole and agree.

A text that is cut inside a figure must not give the part as one. The figures of a row depend on
each other: algbw = size / time and busbw = algbw x bus factor (nccl-tests, doc/PERFORMANCE.md). A
row whose figures do not agree was cut, shifted or changed after it was measured.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from math import inf, isfinite
from typing import Any, NamedTuple

from reports.readers import names
from reports.readers.text import Line
from reports.records.measurement import Measurement, Note, Reading, Run


class Gathered:
    """The rows so far, and notes on lines and on tables' headers that gave none."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.rows: list[Measurement] = []
        self.notes: list[Note] = []
        self._header = 0

    def note(self, line: int, text: str) -> None:
        """Add a note on a line (0: no single one)."""
        self.notes.append(Note(self.source, line, text))

    def take(self, line: int, row: Measurement | str, what: str = "row") -> None:
        """Add a row; a text says why ``what`` is none."""
        self._header = 0
        if isinstance(row, str):
            self.note(line, f"{what} not read: {row}")
        else:
            self.rows.append(row)

    def header(self, line: int) -> None:
        """Begin a table; a header before it that no row followed is noted."""
        self.close()
        self._header = line

    def close(self) -> Reading:
        """End the last table; return everything."""
        if self._header:
            self.note(self._header, "a table's header with no row below it")
        self._header = 0
        return Reading(self.rows, self.notes)


def figure(cell: str) -> float | None:
    """The figure of a cell; None where it is none, negative or not finite."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if 0 <= value < inf else None


def message_row(
    run: Run,
    line: int,
    collective: str,
    message: int,
    ranks: int | None,
    **fields: Any,
) -> Measurement | str:
    """A row of a log that counts one rank's ``message``, with size and rates of the collective.

    ``fields``: the other fields of the row. A text says why there is no row.
    """
    seconds = fields.get("time_s")
    if seconds is None and not fields.keys() & {"bandwidth_bytes_per_s", "messages_per_s"}:
        return "no column of a time or a rate"
    size = names.whole(collective, message, ranks)
    algbw, busbw = names.rates(collective, ranks, size, seconds)
    return Measurement(
        run=run,
        line=line,
        collective=collective,
        size=size,
        message=message,
        ranks=ranks,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=busbw,
        **fields,
    )


def signed(cell: str) -> float | None:
    """As `figure`, of a quantity that may be negative, such as an overlap."""
    value = figure(cell.removeprefix("-"))
    return -value if value is not None and cell.startswith("-") else value


_FIXED = re.compile(r"\d{1,18}\.(\d{1,12})", re.ASCII)


def open_line(lines: Sequence[Line]) -> int:
    """The number of the last line if the text has no line end behind it, else 0.

    The text may be cut there, so that the last figure of the line may be the part of one.
    """
    return lines[-1].number if lines and lines[-1].text else 0


def fixed(cell: str, *places: int) -> float | None:
    """The figure of a cell that a program prints with so many decimals; None for any other cell."""
    match = _FIXED.fullmatch(cell)
    return float(cell) if match and len(match[1]) in places else None


def places(cell: str) -> int:
    """The number of decimals that a cell was printed with."""
    return len(cell.rpartition(".")[2]) if "." in cell else 0


def agrees(printed: str, expected: float, unit: float = 1.0, slack: float = 0.01) -> bool:
    """Whether a printed figure, in ``unit``, is the expected one within its rounding and slack."""
    value = float(printed) * unit
    return abs(value - expected) <= 0.51 * 10.0 ** -places(printed) * unit + slack * expected


# Beyond the printed digits: figures that are written with all their digits were computed in
# floating point.
_SLACK = 1e-6
_MOST_DIGITS = 400


class Printed(NamedTuple):
    """The values that a printed figure may stand for."""

    low: float
    high: float

    def scaled(self, factor: float) -> Printed:
        """The span in another unit; ``factor`` is positive."""
        return Printed(self.low * factor, self.high * factor)

    def meets(self, other: Printed) -> bool:
        """Whether some value is in both."""
        slack = _SLACK * min(abs(self.high), abs(other.high))
        return self.low <= other.high + slack and other.low <= self.high + slack


def span(text: str) -> Printed | None:
    """The values that round or truncate to a printed figure; None where it is no finite number.

    The span reaches one unit of the last digit to both sides.
    """
    try:
        value = Decimal(text.rstrip("*")[:_MOST_DIGITS])
    except InvalidOperation:
        return None
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or not isfinite(float(value)):
        return None
    unit = 10.0 ** min(max(exponent, -300), 300)
    return Printed(float(value) - unit, float(value) + unit)


def contradiction(
    size: int | None, time: Printed | None, algbw: str, busbw: str, factor: float | None
) -> str:
    """Why the figures of a row cannot belong together; empty where they can.

    ``size`` in bytes, ``time`` in seconds (None: not what algbw was computed from), ``algbw`` and
    ``busbw`` in GB/s as printed, ``factor``: the bus factor, None where it is not known.
    """
    rate, bus = span(algbw), span(busbw)
    if rate is None:
        return ""
    if time is not None and size is not None:
        least = size / time.high if time.high > 0 else inf
        most = size / time.low if time.low > 0 else inf
        if not Printed(least, most).meets(rate.scaled(1e9)):
            return f"algbw {algbw} is not its size / time"
    if bus is not None and factor is not None and not rate.scaled(factor or 0.0).meets(bus):
        return f"busbw {busbw} is not algbw {algbw} x {factor:.4g}"
    return ""


class Agreed(NamedTuple):
    """The ranks of a table and its bus factor; ``note``: what is odd about them, else empty."""

    ranks: int | None
    factor: float | None
    note: str = ""


def agreed(collective: str, rates: Sequence[tuple[str, str]], listed: int | None) -> Agreed:
    """The ranks by a list of devices (``listed``) and by the printed pairs (algbw, busbw).

    The rates count where they contradict the list: who pastes a log may cut it, and of a world in
    groups it has all ranks. What most pairs agree on counts, for a single figure may be wrong. The
    factor is None where it is not known, or where most pairs contradict it.
    """
    pairs = [(low, high) for low, high in rates if span(low) and span(high)]
    values = [(float(a.rstrip("*")), float(b.rstrip("*"))) for a, b in pairs]
    estimates = [names.ranks_from_rates(collective, *rates_) for rates_ in values]
    counted = [ranks for ranks in estimates if ranks is not None]
    rated = max(dict.fromkeys(counted), key=counted.count, default=None)
    ranks, note = listed or rated, ""
    if listed and rated and listed not in counted:
        ranks = rated
        why = "the list is cut" if rated > listed else "it is of several groups"
        note = f"{listed} ranks are listed, but the rates are those of {rated}: {why}"
    factor = names.bus_factor(collective, ranks)
    odd = [contradiction(None, None, *pair, factor) for pair in pairs]
    if 2 * sum(map(bool, odd)) <= len(odd):
        return Agreed(ranks, factor, note)
    where = f"{sum(map(bool, odd))} of {len(odd)} rows"
    text = f"busbw is not algbw x {factor:.4g}, which {collective} on {ranks} ranks has, in {where}"
    return Agreed(ranks, None, f"{note}; {text}" if note else text)


def micros(value: object) -> Printed | None:
    """Microseconds of a JSON document as seconds; None where there are none."""
    ends = None if value is None else span(str(value))
    return None if ends is None else ends.scaled(1e-6)
