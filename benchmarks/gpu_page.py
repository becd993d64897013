"""What a section of gpu_one.py says as it goes: Markdown for people, rows of JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

__all__ = ["Page"]


class Page:
    """Prints every line when it is known and flushes it, so that nothing is lost with a process.

    ``rows``: where the same is appended as JSON, an object a line; None keeps none.
    """

    def __init__(self, rows: Path | None = None, out: TextIO | None = None) -> None:
        self._rows, self._out = rows, out or sys.stdout
        self._title, self._columns = "", list[str]()
        self.kept: list[dict[str, Any]] = []
        self.failures: list[str] = []

    def say(self, *lines: str) -> None:
        """Lines as they are."""
        print(*lines, sep="\n", file=self._out, flush=True)

    def table(self, title: str, told: str, columns: Sequence[str]) -> None:
        """A heading, what must be known to read the rows, and their columns."""
        self._title, self._columns = title, list(columns)
        told_lines = [told, ""] if told else []
        self.say("", f"### {title}", "", *told_lines)
        self.say(f"| {' | '.join(columns)} |", "|---" * len(columns) + "|")

    def row(self, *cells: object, **more: Any) -> None:
        """A row of the table; ``more`` goes into the JSON alone."""
        self.say(f"| {' | '.join(map(_text, cells))} |")
        named = dict(zip(self._columns, cells, strict=True))
        self.keep({"table": self._title, **named, **more})

    def fail(self, why: str) -> None:
        """Note a failure: the section goes on, and then ends with exit status 1."""
        self.failures.append(why)
        self.say("", f"**Failed: {why}**", "")
        self.keep({"table": self._title, "failed": why})

    def keep(self, found: dict[str, Any]) -> None:
        """Something for the JSON alone."""
        self.kept.append(found)
        if self._rows is not None:
            with self._rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")


def _text(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
