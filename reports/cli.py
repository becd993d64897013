"""The command line of reports: from arguments to an exit status. Only this file prints."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reports.errors import ReportError
from reports.readers.rows import Reading, Row
from reports.reading import read

if TYPE_CHECKING:
    from rich.console import Console

    from reports.show import Shown

__all__ = ["main"]

_MOST_NOTES = 20


def main(argv: Sequence[str]) -> int:
    """Run a command; 0 well, 1 a threshold was not kept, 2 a file or an option cannot be used."""
    options = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without UTF-8 gets a mark, no crash
        sys.stdout.reconfigure(errors="replace")
    command: Callable[[argparse.Namespace], int] = options.run
    try:
        return command(options)
    except ReportError as error:
        _note(str(error))
        return error.exit_status
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reports", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        made.add_argument("--ranks", type=int, help="rank count, where a log does not say")
        return made

    one = command("import", _import, "read logs of nccl-tests, OSU, IMB or Busbar")
    one.add_argument("files", nargs="+", type=Path, metavar="FILE")
    one.add_argument("--format", choices=("table", "csv", "json", "jsonl"), default="table")
    one.add_argument("--out", type=Path, help="write here; its ending says .csv, .json or .jsonl")
    one = command("show", _show, "tables with intervals and distributions")
    one.add_argument("files", nargs="+", type=Path, metavar="RUN")
    return parser


def _note(text: str) -> None:
    print(f"reports: {text}", file=sys.stderr)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, emoji=False, soft_wrap=False)


def _print(console: Console, shown: Shown) -> None:
    console.print(shown.heading, style="bold", markup=False, soft_wrap=True)
    console.print(shown.table)
    if shown.footnote:
        console.print(shown.footnote, style="dim", markup=False)
        console.print()


def _ascii_only() -> bool:
    return not (sys.stdout.encoding or "ascii").lower().startswith("utf")


def _read(path: Path, ranks: int | None) -> Reading:
    """A file with its notes said on stderr, the first twenty of them."""
    if ranks is not None and ranks < 1:
        raise ReportError(f"--ranks {ranks}: at least 1")
    found = read(path, ranks)
    for note in found.notes[:_MOST_NOTES]:
        _note(str(note))
    if len(found.notes) > _MOST_NOTES:
        _note(f"{path}: {len(found.notes) - _MOST_NOTES} notes more")
    return found


def _import(options: argparse.Namespace) -> int:
    from reports.imported import WRITERS

    form = options.format
    if options.out is not None:
        form = options.out.suffix.removeprefix(".")
        if form not in WRITERS:
            raise ReportError(
                f"{options.out}: no format for that ending; use .csv, .json or .jsonl"
            )
    status, rows = 0, list[Row]()
    for path in options.files:
        try:
            found = _read(path, options.ranks)
        except ReportError as error:  # the other files are still worth reading
            _note(str(error))
            status = error.exit_status
            continue
        rows += found.rows
        if form == "table":
            from reports.show import import_table

            console = _console()
            _print(console, import_table(found.rows, console.width, _ascii_only()))
    if form in WRITERS and rows:
        data = WRITERS[form](rows)
        if options.out is None:
            sys.stdout.write(data)
        else:
            from reports.store import write

            write(options.out, data.encode())
    return status


def _show(options: argparse.Namespace) -> int:
    from reports.show import tables, warnings_of

    console = _console()
    for path in options.files:
        found = _read(path, options.ranks)
        for table in tables(found.rows, console.width, _ascii_only()):
            _print(console, table)
        for warning in warnings_of(found.rows):
            _note(f"{path}: {warning}")
    return 0
