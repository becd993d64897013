"""Make the texts of a reading safe to print (`busbar.terminal`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from msgspec.structs import replace

from busbar.terminal import make_printable, shorten
from reports.records.measurement import Measurement, Note, Reading, Run
from reports.records.table import Coded, Measurements, of_kind

# Most characters of a note: it may quote a word of the file, which may be very long.
_LONGEST_NOTE = 400


def cleaned(reading: Reading) -> Reading:
    """The same reading with printable texts only in rows, runs and notes."""
    notes = [
        Note(
            make_printable(n.source),
            n.line,
            shorten(make_printable(n.text), _LONGEST_NOTE),
            n.broken,
            n.inferred,
        )
        for n in reading.notes
    ]
    if isinstance(reading.rows, Measurements):
        columns = {name: _column(column) for name, column in reading.rows.columns.items()}
        return Reading(Measurements(columns, reading.rows.times), notes)
    runs = {id(row.run): _run(row.run) for row in reading.rows}
    return Reading([_row(row, runs[id(row.run)]) for row in reading.rows], notes)


def _column(column: Any) -> Any:
    if not isinstance(column, Coded):
        return column
    return Coded(column.codes, [printable_values(label) for label in column.labels])


def _row(row: Measurement, run: Run) -> Measurement:
    odd: dict[str, Any] = {
        name: make_printable(text)
        for name in of_kind("text")
        if not (text := getattr(row, name)).isprintable()
    }
    return replace(row, run=run, **odd) if odd or run is not row.run else row


def _run(run: Run) -> Run:
    new = {f.name: printable_values(getattr(run, f.name)) for f in fields(Run)}
    return run if all(new[name] == getattr(run, name) for name in new) else Run(**new)


def printable_values(value: Any) -> Any:
    """Make a text printable, or all texts in nested lists, mappings and runs."""
    if isinstance(value, str):
        return make_printable(value)
    if isinstance(value, Run):
        return _run(value)
    if isinstance(value, Mapping):
        return {printable_values(key): printable_values(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(map(printable_values, value))
    if isinstance(value, Sequence):
        return list(map(printable_values, value))
    return value
