"""Reads a run's progress from its standard error (written by `bench.run.screen`)."""

from __future__ import annotations

import re
from typing import NamedTuple

_FAR = re.compile(r"busbar: (\d{1,9})(?: of (\d{1,9}))? done, [^:]*: (.*)")


class Far(NamedTuple):
    """How far a run is: placements of rows, and which one is under way.

    ``of``: all of them, or 0 where a run goes on until it is ended.
    """

    done: int
    of: int
    doing: str


def far(line: str) -> Far | None:
    """The progress in a line; None for any other line."""
    found = _FAR.fullmatch(line.strip())
    return None if found is None else Far(int(found[1]), int(found[2] or 0), found[3])


def last_words(err: str) -> list[str]:
    """The other messages of a run, a sentence each, without the prefix."""
    lines = (line for line in err.splitlines() if line.startswith("busbar: ") and far(line) is None)
    return [line.removeprefix("busbar: ") for line in lines]
