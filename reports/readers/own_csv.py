"""Reads Busbar's CSV export."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from math import inf
from typing import Any

from busbar.cells import uncelled
from reports.readers.gathered import Gathered
from reports.readers.upgrade import shared_work
from reports.records.rows import Reading, Row, Run

# What every version wrote, and what later ones did; the columns are a row's own.
_TEXTS = ("collective", "placement", "algorithm", "transport", "dtype", "op", "stopped", "skipped")
_WHOLE = ("size", "ranks", "count", "root", "iterations")
_FIGURES = (
    "low_s", "high_s", "limit_s", "algbw_bytes_per_s", "busbw_bytes_per_s", "ranks_per_core",
)  # fmt: skip
_COUNTS = ("wrong", "sent_bytes", "received_bytes", "total_bytes")


def read_csv(source: str, text: str) -> Reading:
    """The rows of our CSV export, which has figures and no raw times."""
    run = Run(source, 0, "busbar-csv", "busbar")
    found = Gathered(source)
    table = csv.DictReader(text.splitlines())
    while True:
        try:
            cells = next(table, None)
            if cells is None:
                break
            texts = {k: uncelled(v) for k, v in cells.items() if isinstance(v, str)}
            found.take(table.line_num, _csv_row(run, table.line_num, texts))
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            found.take(table.line_num, str(error))
    return found.close()


def _csv_row(run: Run, line: int, cells: Mapping[str, str]) -> Row:
    def figure(column: str) -> float | None:
        value = float(cells[column]) if cells.get(column) else None
        if value is not None and not 0 <= value < inf:
            raise ValueError(f"{column} is no figure")
        return value

    def count(column: str) -> int | None:
        return int(cells[column]) if cells.get(column) else None

    if cells["placement"] not in ("out", "in"):
        raise ValueError(f"placement {cells['placement'][:20]!r} is neither out nor in")
    shared = cells.get("worksharing")
    if shared is None:  # written before format 3
        names = (cells["transport"], cells["algorithm"], cells.get("schedule", ""))
        shared = str(int(shared_work(*names)))
    known: dict[str, Any] = {name: cells[name] for name in _TEXTS}
    known |= {name: int(cells[name]) for name in _WHOLE}
    known |= {name: figure(name) for name in _FIGURES} | {name: count(name) for name in _COUNTS}
    return Row(
        run=run,
        line=line,
        **known,
        message=known["size"],
        statistic="median",
        time_s=figure("median_s"),
        schedule=cells.get("schedule", ""),
        worksharing=shared == "1",
    )
