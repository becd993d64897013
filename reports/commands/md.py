"""Markdown for a pull request: a run, or NEW against BASE."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reports.commands.compare import add_comparison, compared, rules_of
from reports.commands.output import add_ranks, read_noting


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_ranks(parser)
    parser.add_argument(
        "run_", type=Path, metavar="RUN", help="the run, or the base when NEW is given"
    )
    parser.add_argument(
        "new", type=Path, nargs="?", metavar="NEW", help="the run to compare with the base"
    )
    add_comparison(parser)


def run(options: argparse.Namespace) -> int:
    """Print the tables."""
    from reports.analysis.launches import over_launches
    from reports.tables.markdown import comparison_markdown, markdown

    rows = read_noting(options.run_, options.ranks).rows
    if options.new is None:
        sys.stdout.write(markdown(over_launches(rows)))
    else:
        new = read_noting(options.new, options.ranks).rows
        comparisons, differing, _ = compared(rows, new, options)
        rules = rules_of(rows, new, comparisons)
        sys.stdout.write(comparison_markdown(comparisons, differing, rules))
    return 0
