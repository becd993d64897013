"""Shared by the commands: reading with notes, and printing. Results to stdout, notes to stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.errors import ReportError
from busbar.options import OptionGroup, option
from busbar.terminal import make_printable, open_console
from reports.readers.reading import read

if TYPE_CHECKING:
    from rich.console import Console

    from busbar.tables import RenderedTable
    from reports.records.measurement import Measurement, Reading

_MOST_NOTES = 20


class LogOptions(OptionGroup):
    """How to read logs, for every command that does."""

    ranks: int | None = option("--ranks  rank count of a log that does not state it")


class RunOptions(LogOptions):
    """The files that a command reads, and how to read them."""

    files: tuple[Path, ...] = option(
        "RUN", (), lambda text: Path("/dev/stdin" if text == "-" else text), nargs="+"
    )


def rows_of(options: RunOptions) -> list[Measurement]:
    """The rows of all files, whose notes are printed. Raises ReportError."""
    return [row for path in options.files for row in read_noting(path, options.ranks).rows]


class MachineOptions(OptionGroup):
    """What is drawn beside the rows: a bound, and the machine."""

    limit: str | None = option(
        "--limit RATE  bound on busbw for rows that have none of their own, such as 480GB/s"
    )
    topology: tuple[Path, ...] = option(
        "--topology FILE  map of the machine, or its measured matrices: any file that python -m"
        " topology reads",
        (),
        action="append",
    )


def read_noting(path: Path, ranks: int | None) -> Reading:
    """A file, with its notes said on stderr, the first twenty of them. Raises ReportError."""
    if ranks is not None and ranks < 1:
        raise ReportError(f"--ranks {ranks}: at least 1")
    reading = read(path, ranks)
    for one in reading.notes[:_MOST_NOTES]:
        note(str(one))
    if len(reading.notes) > _MOST_NOTES:
        note(f"{path}: {len(reading.notes) - _MOST_NOTES} notes more")
    if any(_lacks_ranks(row) for row in reading.rows):
        note(f"{path}: does not say how many ranks there were; --ranks N gives busbw")
    return reading


def _lacks_ranks(row: Measurement) -> bool:
    """Whether a row has no bus bandwidth for want of the number of ranks."""
    rated = row.algbw_bytes_per_s is not None and row.busbw_bytes_per_s is None
    return rated and row.ranks is None


def make_folder(path: Path) -> None:
    """A folder for figures, where it is missing. Raises ReportError."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise ReportError(f"{path}: cannot be made: {error.strerror}") from None


def note(text: str) -> None:
    """Print a line on stderr, without escapes."""
    print(f"reports: {make_printable(text)}", file=sys.stderr)


def console() -> Console:
    """The terminal, as wide as it is (``COLUMNS`` says otherwise)."""
    return open_console(highlight=False, emoji=False, soft_wrap=False)


def print_table(screen: Console, shown: RenderedTable) -> None:
    """A table with its heading and its footnote."""
    screen.print(shown.heading, style="bold", markup=False, soft_wrap=True)
    screen.print(shown.table)
    if shown.footnote:
        screen.print(shown.footnote, style="dim", markup=False)
        screen.print()


def ascii_only() -> bool:
    """Whether stdout cannot show block characters."""
    return not (sys.stdout.encoding or "ascii").lower().startswith("utf")
