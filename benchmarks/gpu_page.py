"""The output of a section of gpu_one.py: Markdown for people, rows of JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

__all__ = ["Page"]


class Page:
    """Prints and flushes every line at once, so that nothing is lost if the process ends.

    ``rows``: file to which the same is appended as JSON, an object on each line; None: no file.
    """

    def __init__(self, rows: Path | None = None, out: TextIO | None = None) -> None:
        self._rows, self._out = rows, out or sys.stdout
        self._title, self._columns = "", list[str]()
        self.kept: list[dict[str, Any]] = []
        self.failures: list[str] = []

    def say(self, *lines: str) -> None:
        """Print lines without changes."""
        print(*lines, sep="\n", file=self._out, flush=True)

    def table(self, title: str, told: str, columns: Sequence[str]) -> None:
        """Begin a table: heading, explanation of its rows, and columns."""
        self._title, self._columns = title, list(columns)
        told_lines = [told, ""] if told else []
        self.say("", f"### {title}", "", *told_lines)
        self.say(f"| {' | '.join(columns)} |", "|---" * len(columns) + "|")

    def row(self, *cells: object, **more: Any) -> None:
        """Print a row of the table; ``more`` goes into the JSON only."""
        self.say(f"| {' | '.join(map(_text, cells))} |")
        named = dict(zip(self._columns, cells, strict=True))
        self.keep({"table": self._title, **named, **more})

    def fail(self, why: str) -> None:
        """Note a failure. The section continues, and then ends with exit status 1."""
        self.failures.append(why)
        self.say("", f"**Failed: {why}**", "")
        self.keep({"table": self._title, "failed": why})

    def keep(self, found: dict[str, Any]) -> None:
        """Write an object to the JSON only."""
        self.kept.append(found)
        if self._rows is not None:
            with self._rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")


def _text(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
