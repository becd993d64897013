"""Tables with intervals and distributions."""

from __future__ import annotations

import argparse
from pathlib import Path

from reports.commands.expecting import add_expect, expect
from reports.commands.output import add_ranks, ascii_only, console, note, print_table, read_noting
from reports.readers.rows import Row

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_ranks(parser)
    parser.add_argument("files", nargs="+", type=Path, metavar="RUN")
    add_expect(parser)


def run(options: argparse.Namespace) -> int:
    """Print each file's tables; 1 when an expectation is not kept."""
    from reports.show import tables, warnings_of

    terminal, rows = console(), list[Row]()
    for path in options.files:
        found = read_noting(path, options.ranks)
        rows += found.rows
        for table in tables(found.rows, terminal.width, ascii_only()):
            print_table(terminal, table)
        for warning in warnings_of(found.rows):
            note(f"{path}: {warning}")
    return expect(options, rows)
