"""Read logs of nccl-tests, OSU, IMB or Busbar."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from busbar.errors import ReportError
from reports.commands.output import add_ranks, console, note, print_table, read_noting
from reports.records.measurement import Measurement


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_ranks(parser)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--format", choices=("table", "csv", "json", "jsonl"), default="table")
    parser.add_argument("--out", type=Path, help="write into this file: .csv, .json or .jsonl")


def run(options: argparse.Namespace) -> int:
    """The rows of all files in one form; 2 when a file had none, after reading the others."""
    from reports.exports.imported import WRITERS

    form = options.format
    if options.out is not None:
        form = options.out.suffix.removeprefix(".")
        if form not in WRITERS:
            raise ReportError(
                f"{options.out}: no format for that ending; use .csv, .json or .jsonl"
            )
    status, rows = 0, list[Measurement]()
    for path in options.files:
        try:
            found = read_noting(path, options.ranks)
        except ReportError as error:  # the other files are still worth reading
            note(str(error))
            status = error.exit_status
            continue
        rows += found.rows
        if form == "table":
            from reports.tables.show import import_table

            terminal = console()
            print_table(terminal, import_table(found.rows, terminal.width))
    if form in WRITERS and rows:
        data = WRITERS[form](rows)
        if options.out is None:
            sys.stdout.write(data)
        else:
            from busbar.files import write

            write(options.out, data.encode())
    return status
