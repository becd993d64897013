"""Reads whole training-step records, since their curves are not columns of rows."""

from __future__ import annotations

import json
from pathlib import Path

from busbar.files import decoded
from reports.readers.own import result
from reports.readers.text import read_bytes, record_files
from reports.records.record import Result

__all__ = ["step_results"]


def step_results(path: Path) -> list[Result]:
    """The records of steps in JSON lines, or in those of a run directory; none in other files.

    What is no such record is left out: whoever reads the rows of the file has said so.
    """
    found = []
    every = (decoded(read_bytes(file)[0]) for file in record_files(path))
    for line in (line for text in every for line in text.split("\n")):
        if '"step"' not in line:
            continue
        try:
            document = json.loads(line)
            if isinstance(document, dict) and isinstance(document.get("step"), dict):
                found.append(result(document))
        except (ValueError, TypeError, RecursionError):
            continue
    return found
