"""Figures: busbw, latency, iterations, scaling, P x P heat maps, training steps."""

from __future__ import annotations

import argparse
from pathlib import Path

from busbar.errors import ReportError
from reports.commands.output import add_machine, add_runs, make_folder, rows_of


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_runs(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder (default .), created if it is missing",
    )
    parser.add_argument("--format", choices=("png", "svg", "pdf"), default="png")
    add_machine(parser)


def run(options: argparse.Namespace) -> int:
    """Write the figures and print their names."""
    from busbar.files import write
    from reports.analysis.expect import parse_rate
    from reports.analysis.launches import over_launches
    from reports.analysis.machine import read_machine
    from reports.analysis.steps import summaries
    from reports.figures.plot import figures
    from reports.figures.steps import bars, picture
    from reports.readers.codec import step_measurements
    from reports.records.measurement import STEP

    limit = None if options.limit is None else parse_rate(options.limit)
    if not options.out.is_dir() and (options.out.exists() or not options.out.parent.is_dir()):
        raise ReportError(f"{options.out}: is no folder, and none can be made there")
    machine = read_machine(options.topology) if options.topology else None
    records = [one for path in options.files for one in step_measurements(path)]
    # Of steps neither sizes nor busbw say anything: they have figures of their own.
    rows = [row for row in over_launches(rows_of(options)) if not row.collective.startswith(STEP)]
    made = figures(rows, options.format, limit, machine) if rows or not records else {}
    steps = summaries(records)
    if any(one.family or one.loss for one in steps):
        made["steps"] = picture(steps, options.format)
    if (drawn := bars(records, options.format)) is not None:
        made["steps-exposed"] = drawn
    for name, data in made.items():
        make_folder(options.out)
        target = options.out / f"{name}.{options.format}"
        write(target, data)
        print(target)
    return 0
