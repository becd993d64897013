"""Tables with intervals and distributions."""

from __future__ import annotations

import argparse
from pathlib import Path

from reports.commands.expecting import add_expect, expect, wanted
from reports.commands.output import add_runs, ascii_only, console, note, print_table, read_noting
from reports.commands.ruling import add_rules, print_rules
from reports.records.measurement import Measurement


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_runs(parser)
    text = "predictions and lower bounds of this fit (python -m collectives fit) beside the times"
    parser.add_argument("--fit", type=Path, metavar="FILE", help=text)
    add_rules(parser)
    add_expect(parser)


def run(options: argparse.Namespace) -> int:
    """Print each file's tables; 1 when an expectation is not kept."""
    from reports.analysis.cautions import warnings_of
    from reports.analysis.launches import over_launches
    from reports.analysis.quality import checklist
    from reports.records.table import folded
    from reports.tables.show import tables
    from reports.tables.winners import answer

    asked = wanted(options)
    terminal, rows = console(), list[Measurement]()
    fit = None
    if options.fit is not None:
        from reports.analysis.predicted import beside, open_fit

        fit = open_fit(options.fit)
    for path in options.files:
        every = read_noting(path, options.ranks).rows
        found = folded(every)
        shown = over_launches(found)
        rows += shown
        expected = () if fit is None else (beside(shown, fit),)
        for table in tables(shown, terminal.width, ascii_only(), *expected):
            print_table(terminal, table)
        if best := answer(found, terminal.width):
            print("\n".join(best))
        if len(shown) < len(every):
            note(
                f"{path}: {len(every)} rows, shown as {len(shown)}: iterations of the same together"
            )
        for warning in warnings_of(found):
            note(f"{path}: {warning}")
    print_rules(terminal, checklist(rows, limit=asked.limit), options)
    return expect(asked, rows)
