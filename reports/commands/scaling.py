"""Speed-up and efficiency of runs on several numbers of ranks."""

from __future__ import annotations

import argparse

from reports.commands.output import add_runs, console, print_table, rows_of
from reports.commands.ruling import add_rules, print_rules


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_runs(parser)
    add_rules(parser)


def run(options: argparse.Namespace) -> int:
    """Print the tables, base case first, and who wins where."""
    from reports.analysis.quality import checklist
    from reports.tables.scaling import scaling, scaling_tables
    from reports.tables.winners import winners_map

    rows = rows_of(options)
    found = scaling(rows)
    terminal = console()
    for shown in scaling_tables(found, terminal.width):
        print_table(terminal, shown)
    for block in winners_map(rows, terminal.width):
        print("\n".join(block) + "\n")
    print_rules(terminal, checklist([s.row for series in found for s in series]), options)
    return 0
