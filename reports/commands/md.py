"""Markdown tables for a pull request."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reports.commands.output import add_ranks, read_noting

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_ranks(parser)
    parser.add_argument("run_", type=Path, metavar="RUN")


def run(options: argparse.Namespace) -> int:
    """Print the tables."""
    from reports.markdown import markdown

    sys.stdout.write(markdown(read_noting(options.run_, options.ranks).rows))
    return 0
