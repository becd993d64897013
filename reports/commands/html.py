"""One page for the browser, of one run or several."""

from __future__ import annotations

import argparse
from pathlib import Path

from busbar.errors import ReportError
from reports.commands.output import add_machine, add_runs, read_noting
from reports.readers.codec import step_measurements


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
    from reports.page.payload import MOST_ROWS
    from reports.records.table import folded

    if options.out.suffix not in (".html", ".htm"):
        raise ReportError(f"{options.out}: name the page with .html at its end")
    limit = None if options.limit is None else parse_rate(options.limit)
    machine = read_machine(options.topology) if options.topology else None
    files = [read_noting(path, options.ranks) for path in options.files]
    steps = [one for path in options.files for one in step_measurements(path)]
    notes = [str(note) for found in files for note in found.notes]
    every, said = sum(len(found.rows) for found in files), ""
    parts = [found.rows for found in files]
    if every > MOST_ROWS:
        parts = [folded(rows) for rows in parts]
        said = f"{every:,} rows: those that measured one thing are one, with all iterations"
    rows = over_launches([row for part in parts for row in part])
    write(options.out, page(rows, machine, limit, options.title, notes, steps, said))
    print(options.out)
    return 0
