"""Figures: busbw, latency, distribution of iterations."""

from __future__ import annotations

import argparse
from pathlib import Path

from reports.commands.output import add_ranks, read_noting
from reports.errors import ReportError

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_ranks(parser)
    parser.add_argument("run_", type=Path, metavar="RUN")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder (default .)"
    )
    parser.add_argument("--format", choices=("png", "svg", "pdf"), default="png")
    parser.add_argument("--limit", metavar="RATE", help="bound to draw, such as 480GB/s")


def run(options: argparse.Namespace) -> int:
    """Write the figures and print their names."""
    from reports.expect import parse_rate
    from reports.plot import figures
    from reports.store import write

    limit = None if options.limit is None else parse_rate(options.limit)
    rows = read_noting(options.run_, options.ranks).rows
    if not options.out.is_dir():
        raise ReportError(f"{options.out}: there is no such folder")
    for name, data in figures(rows, options.format, limit).items():
        target = options.out / f"{name}.{options.format}"
        write(target, data)
        print(target)
    return 0
