"""Rows and notes of a log while it is read: shared by the readers of single rows."""

from __future__ import annotations

from math import inf
from typing import Any

from reports.readers import names
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
