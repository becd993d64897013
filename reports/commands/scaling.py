"""Speed-up and efficiency of runs on several numbers of ranks."""

from __future__ import annotations

import argparse
from pathlib import Path

from reports.commands.output import add_ranks, ascii_only, console, print_table, read_noting
from reports.commands.ruling import add_rules, print_rules

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_ranks(parser)
    parser.add_argument("files", nargs="+", type=Path, metavar="RUN")
    add_rules(parser)


def run(options: argparse.Namespace) -> int:
    """Print the tables, base case first."""
    from reports.quality import checklist
    from reports.scaling import scaling, scaling_tables

    rows = [row for path in options.files for row in read_noting(path, options.ranks).rows]
    found = scaling(rows)
    terminal = console()
    for shown in scaling_tables(found, ascii_only()):
        print_table(terminal, shown)
    print_rules(terminal, checklist([s.row for series in found for s in series]), options)
    return 0
