"""One page for the browser, of one run or several."""

from __future__ import annotations

import argparse
from pathlib import Path

from busbar.errors import ReportError
from reports.commands.output import add_machine, add_runs, read_noting
from reports.readers.own import step_results
from reports.records.record import Result
from reports.records.rows import Row


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_runs(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="file of the page (.html)"
    )
    add_machine(parser)
    parser.add_argument("--title", default="", help="heading of the page")


def run(options: argparse.Namespace) -> int:
    """Write the page and print its name."""
    from busbar.files import write
    from reports.analysis.expect import parse_rate
    from reports.analysis.launches import over_launches
    from reports.analysis.machine import read_machine
    from reports.page import page

    if options.out.suffix not in (".html", ".htm"):
        raise ReportError(f"{options.out}: name the page with .html at its end")
    limit = None if options.limit is None else parse_rate(options.limit)
    machine = read_machine(options.topology) if options.topology else None
    rows, notes, steps = list[Row](), list[str](), list[Result]()
    for path in options.files:
        found = read_noting(path, options.ranks)
        rows += found.rows
        notes += map(str, found.notes)
        steps += step_results(path)
    write(options.out, page(over_launches(rows), machine, limit, options.title, notes, steps))
    print(options.out)
    return 0
