"""Pure functions from rows to text: CSV, JSON and JSON lines with the columns of the DataFrame."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from busbar.tables import render_csv
from reports.records.rows import COLUMNS, Row, record


def to_csv(rows: Sequence[Row]) -> str:
    """One line a row; lists are joined with ``;``, missing values stay empty."""

    def cell(value: Any) -> Any:
        return ";".join(map(str, value)) if isinstance(value, tuple) else value

    return render_csv([COLUMNS, *([cell(v) for v in record(r).values()] for r in rows)])


def to_json(rows: Sequence[Row]) -> str:
    """One JSON list."""
    return json.dumps([record(r) for r in rows], indent=1) + "\n"


def to_jsonl(rows: Sequence[Row]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(record(r)) + "\n" for r in rows)


WRITERS: dict[str, Callable[[Sequence[Row]], str]] = {
    "csv": to_csv,
    "json": to_json,
    "jsonl": to_jsonl,
}
