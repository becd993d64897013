"""Reads Busbar's CSV export."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from busbar.tables import unescape_cell
from reports.readers.gathered import Gathered
from reports.readers.upgrade import shared_work
from reports.records.measurement import Measurement, Reading, Run
from reports.records.table import COLUMNS

#: The columns: fields of a `Measurement`, but for the two that say which figure a time is. Files
#: of before format 3 end with ``schedule`` or earlier.
CSV = (
    "collective", "algorithm", "transport", "ranks", "size", "count", "dtype", "op", "root",
    "placement", "iterations", "median_s", "low_s", "high_s", "mean_s", "algbw_bytes_per_s",
    "busbw_bytes_per_s", "wrong", "stopped", "skipped", "limit_s", "schedule", "ranks_per_core",
    "worksharing", "sent_bytes", "received_bytes", "total_bytes",
)  # fmt: skip


def read_csv(source: str, text: str) -> Reading:
    """The rows of our CSV export, which has figures and no raw times."""
    run = Run(source, 0, "busbar-csv", "busbar")
    gathered = Gathered(source)
    table = csv.DictReader(text.splitlines())
    while True:
        try:
            cells = next(table, None)
            if cells is None:
                break
            if None in cells.values():
                raise ValueError("it is cut")
            texts = {k: unescape_cell(v) for k, v in cells.items() if isinstance(v, str)}
            gathered.take(table.line_num, _csv_row(run, table.line_num, texts))
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            gathered.take(table.line_num, str(error))
    return gathered.close()


def _csv_row(run: Run, line: int, cells: Mapping[str, str]) -> Measurement:
    if cells["placement"] not in ("out", "in"):
        raise ValueError(f"placement {cells['placement'][:20]!r} is neither out nor in")
    known: dict[str, Any] = {
        name: _READ[COLUMNS[name].kind](name, cells[name])
        for name in CSV
        if name in cells and name in COLUMNS
    }
    if "worksharing" not in known:  # written before format 3
        what = (cells["transport"], cells["algorithm"], cells.get("schedule", ""))
        known["worksharing"] = shared_work(*what)
    time_s = _figure("median_s", cells["median_s"])
    known |= {"message": known["size"], "statistic": "median", "time_s": time_s}
    return Measurement(run=run, line=line, **known)


def _figure(name: str, text: str) -> float | None:
    value = float(text) if text else None
    if value is not None and not 0 <= value < inf:
        raise ValueError(f"{name} is no figure")
    return value


_READ: Mapping[str, Callable[[str, str], Any]] = {
    "text": lambda name, text: text,
    "count": lambda name, text: int(text) if text else None,
    "real": _figure,
    "truth": lambda name, text: text == "1",
}
