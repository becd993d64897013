"""Collect rows and notes while a log is read, and check that figures are complete and consistent.

If a text is cut inside a figure, the rest must not be taken for the figure. The figures of a row
depend on each other: algbw = size / time and busbw = algbw x bus factor (nccl-tests,
doc/PERFORMANCE.md). A row with inconsistent figures was cut, shifted or changed.
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
    """The rows so far, notes on lines, and notes on headers without a row."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.rows: list[Measurement] = []
        self.notes: list[Note] = []
        self._header = 0

    def note(self, line: int, text: str, *, broken: bool = False) -> None:
        """Add a note on a line (0: no single one)."""
        self.notes.append(Note(self.source, line, text, broken))

    def take(self, line: int, row: Measurement | str, what: str = "row") -> None:
        """Add a row, or a note if ``row`` is the reason why ``what`` cannot be read."""
        self._header = 0
        if isinstance(row, str):
            self.note(line, f"{what} not read: {row}")
        else:
            self.rows.append(row)

    def header(self, line: int) -> None:
        """Begin a table. Adds a note if no row followed the header before it."""
        self.close()
        self._header = line

    def close(self) -> Reading:
        """End the last table. Returns all rows and notes."""
        if self._header:
            self.note(self._header, "a table's header with no row below it")
        self._header = 0
        return Reading(self.rows, self.notes)


def figure(cell: str) -> float | None:
    """The number in a cell; None if it is no number, negative or not finite."""
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
    per_rank: bool = False,
    **fields: Any,
) -> Measurement | str:
    """Make a row of a log that counts one rank's ``message``, with the collective's size and rates.

    ``per_rank``: the collective handles ranks x ``message`` whatever its name. ``fields``: the
    other fields of the row. Returns a reason as text if there is no time or rate.
    """
    seconds = fields.get("time_s")
    if seconds is None and not fields.keys() & {"bandwidth_bytes_per_s", "messages_per_s"}:
        return "no column of a time or a rate"
    size = names.whole("allgather" if per_rank else collective, message, ranks)
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
    """As `figure`, for a quantity that may be negative, such as an overlap."""
    value = figure(cell.removeprefix("-"))
    return -value if value is not None and cell.startswith("-") else value


_FIXED = re.compile(r"\d{1,18}\.(\d{1,12})", re.ASCII)


def open_line(lines: Sequence[Line]) -> int:
    """The number of the last line if no line end follows it, else 0.

    The text may be cut there, so that the last figure of the line may be incomplete.
    """
    return lines[-1].number if lines and lines[-1].text else 0


def fixed(cell: str, *places: int) -> float | None:
    """The number in a cell if it has one of these numbers of decimals, otherwise None."""
    match = _FIXED.fullmatch(cell)
    return float(cell) if match and len(match[1]) in places else None


def places(cell: str) -> int:
    """The number of decimals that a cell was printed with."""
    return len(cell.rpartition(".")[2]) if "." in cell else 0


def agrees(printed: str, expected: float, unit: float = 1.0, slack: float = 0.01) -> bool:
    """True if a printed figure is as expected, within its rounding and the relative ``slack``.

    ``unit``: the printed figure's unit, in units of ``expected``.
    """
    value = float(printed) * unit
    return abs(value - expected) <= 0.51 * 10.0 ** -places(printed) * unit + slack * expected


# Relative tolerance beyond the printed digits, for floating-point errors in figures that are
# printed with all digits.
_SLACK = 1e-6
_MOST_DIGITS = 400


class Printed(NamedTuple):
    """The interval of values that a printed figure may stand for."""

    low: float
    high: float

    def scaled(self, factor: float) -> Printed:
        """The interval in another unit; ``factor`` is positive."""
        return Printed(self.low * factor, self.high * factor)

    def meets(self, other: Printed) -> bool:
        """True if the two intervals overlap."""
        slack = _SLACK * min(abs(self.high), abs(other.high))
        return self.low <= other.high + slack and other.low <= self.high + slack


def span(text: str) -> Printed | None:
    """The interval of values that round or truncate to a printed figure; None if not finite.

    It extends by one unit of the last digit to both sides.
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
    """Why the figures of a row are inconsistent; empty if they are consistent.

    ``size`` in bytes, ``time`` in seconds (None: algbw was not computed from it), ``algbw`` and
    ``busbw`` in GB/s as printed, ``factor``: the bus factor, None if it is not known.
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
    """Number of ranks of a table and its bus factor; ``note``: a contradiction, if any."""

    ranks: int | None
    factor: float | None
    note: str = ""


def agreed(collective: str, rates: Sequence[tuple[str, str]], listed: int | None) -> Agreed:
    """Infer the number of ranks from a device list (``listed``) and printed pairs (algbw, busbw).

    If rates contradict the list, the rates count: the list may have been cut in a pasted log, and
    with groups it has the ranks of all. The value of most pairs is taken, because single figures
    may be wrong. The factor is None if it is not known, or if most pairs contradict it.
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
    """The interval in seconds of a printed number of microseconds; None for None."""
    ends = None if value is None else span(str(value))
    return None if ends is None else ends.scaled(1e-6)
