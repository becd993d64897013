"""Pure functions from rows to text: CSV, JSON and JSON lines with the columns of the DataFrame."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from busbar.tables import render_csv
from reports.records.measurement import Measurement
from reports.records.table import SHOWN, as_mapping


def to_csv(rows: Sequence[Measurement]) -> str:
    """One line a row; lists are joined with ``;``, missing values stay empty."""

    def cell(value: Any) -> Any:
        return ";".join(map(str, value)) if isinstance(value, tuple) else value

    return render_csv([SHOWN, *([cell(v) for v in as_mapping(r).values()] for r in rows)])


def to_json(rows: Sequence[Measurement]) -> str:
    """One JSON list."""
    return json.dumps([as_mapping(r) for r in rows], indent=1) + "\n"


def to_jsonl(rows: Sequence[Measurement]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(as_mapping(r)) + "\n" for r in rows)


WRITERS: dict[str, Callable[[Sequence[Measurement]], str]] = {
    "csv": to_csv,
    "json": to_json,
    "jsonl": to_jsonl,
}
