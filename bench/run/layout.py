"""The layout of rows: nccl-tests' table, or a compact one for narrow terminals."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from bench.options.options import Options
from busbar.launchers import launched
from reports.exports import run_table
from reports.exports.run_table import Banner
from reports.records.measurement import Placements

#: The columns of the terminal that a run's starter prints to. Its ranks print into a pipe.
COLUMNS = "BUSBAR_COLUMNS"
_LEAST_WIDTH = 80


class Nccl:
    """nccl-tests' own, which other programs parse."""

    def __init__(self, options: Options) -> None:
        self._statistic, self._iterations = options.statistic, bool(options.per_iteration)
        self._limit = options.limit == "column"

    def header(self, banner: Banner) -> list[str]:
        """The lines above the rows."""
        return run_table.header(banner, self._iterations, self._limit)

    def row(self, pair: Placements) -> list[str]:
        """The lines of a row."""
        return [run_table.row(pair, self._statistic, self._iterations, self._limit)]

    @property
    def width(self) -> int:
        """Columns that a row takes."""
        return len(run_table.columns(self._iterations, self._limit)[-1].rstrip())


class Compact:
    """A line a placement. What differs between the rows of a table stands behind them."""

    def __init__(self, options: Options) -> None:
        self._statistic = options.statistic
        self._kinds, self._roots = (options.dtypes, options.ops), options.root is None

    def header(self, banner: Banner) -> list[str]:
        """The lines above the rows."""
        shared = [f"{len(kind)} kinds" if len(kind) > 1 else kind[0] for kind in self._kinds]
        return run_table.compact_header(banner, ", ".join(shared))

    def row(self, pair: Placements) -> list[str]:
        """The lines of a row."""
        first = pair.every[0]
        each = (first.dtype, first.op)
        words = [word for word, kind in zip(each, self._kinds, strict=True) if len(kind) > 1]
        words += [f"root {first.root}"] if self._roots and (first.root or 0) >= 0 else []
        return run_table.compact_rows(pair, self._statistic, " ".join(words))


TableLayout = Nccl | Compact
"""Makes the lines of a table, comments first."""


def layout(options: Options) -> TableLayout:
    """The layout that was asked for; else nccl-tests', but on a terminal that is too narrow for it.

    Columns about single iterations are in nccl-tests' only.
    """
    wide, room = Nccl(options), columns()
    narrow = room is not None and room < wide.width and not bool(options.per_iteration)
    compact = options.layout == "compact" or (options.layout == "auto" and narrow)
    return Compact(options) if compact else wide


def columns() -> int | None:
    """How wide the terminal is that results are printed to; None where they go elsewhere."""
    with suppress(ValueError):
        return int(os.environ[COLUMNS]) if COLUMNS in os.environ else _own()
    return None


def for_ranks() -> dict[str, str]:
    """Environment variables that tell our ranks how wide this process's terminal is."""
    width = _own()
    return {} if width is None else {COLUMNS: str(width)}


def report_width() -> int:
    """How wide closing reports are: as the terminal, or as a narrow one."""
    return max(_LEAST_WIDTH, columns() or 0)


def _own() -> int | None:
    """Under a launcher it is the launcher that prints, whatever it gives its ranks to print to."""
    with suppress(OSError, ValueError):
        if sys.stdout is not None and sys.stdout.isatty() and launched() is None:
            return os.get_terminal_size(sys.stdout.fileno()).columns
    return None
