"""Parameter server and ring over ranks and sizes, measured and predicted, against the textbook's volumes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from reports.commands.output import add_runs, ascii_only, console, note, print_table, rows_of
from reports.errors import ReportError

if TYPE_CHECKING:
    from reports.model import Comparison
    from reports.show import Shown

__all__ = ["add", "run"]

_MOST_RANKS = 256


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_runs(parser, "*")
    option = parser.add_argument
    option("-n", metavar="RANKS", help="rank counts to predict, like 2-8,16 (default those of RUN)")
    option("-b", "--minbytes", metavar="SIZE", help="predict from this size on (default 1M)")
    option("-e", "--maxbytes", metavar="SIZE", help="to this size (default 64M)")
    option("-f", "--stepfactor", type=float, default=8.0, metavar="F", help="default 8")
    option("--fit", type=Path, metavar="FILE", help="a file of python -m collectives fit")
    option("--out", type=Path, metavar="FILE", help="draw it, .png or .svg")


def run(options: argparse.Namespace) -> int:
    """Print the tables and draw the figure."""
    from reports.files import write
    from reports.model import compare
    from reports.model_figure import picture
    from reports.predicted import open_machine, rank_counts, sweep_sizes

    form = None
    if options.out is not None:
        form = options.out.suffix.removeprefix(".")
        if form not in ("png", "svg"):
            raise ReportError(f"{options.out}: no format for that ending; use .png or .svg")
    rows = rows_of(options)
    ranks = rank_counts(options.n or ("" if rows else "2-8,12,16"), _MOST_RANKS)
    asked = options.minbytes or options.maxbytes or not rows
    sizes = (
        sweep_sizes(options.minbytes or "1M", options.maxbytes or "64M", options.stepfactor)
        if asked
        else []
    )
    # Beside measurements an assumed network would say nothing.
    predict, notes = open_machine(options.fit, assume=not rows)
    comparison = compare(rows, ranks, sizes, predict)
    terminal = console()
    for shown in _tables(comparison, terminal.width):
        print_table(terminal, shown)
    for line in dict.fromkeys(notes()):
        note(line)
    if form is not None:
        write(options.out, picture(comparison, form))
        print(options.out)
    return 0


def _tables(comparison: Comparison, width: int) -> list[Shown]:
    from reports.model import ALGORITHMS
    from reports.show import plain_table
    from reports.shown import seconds, size_text

    made = []
    for name in ALGORITHMS:
        formula = "2n(P-1)" if name == "ps" else "2n(P-1)/P"
        rate = comparison.rates.get(name)
        heading = f"all-reduce by {name}: busiest port {formula}"
        if rate:
            heading += f"; textbook at {rate / 1e9:.3g} GB/s"
        cells = comparison.of(name)
        if not cells:
            continue
        growth = [comparison.growth(c) for c in cells]
        columns: list[tuple[str, str, list[str]]] = [
            ("ranks", "right", [str(c.ranks) for c in cells]),
            ("size", "right", [size_text(c.size) for c in cells]),
            (formula, "right", [f"{c.volume:.4g}n" for c in cells]),
            ("counted", "right", [f"{c.counted:.4g}n" for c in cells]),
            ("measured", "right", [_known(c.measured, seconds) for c in cells]),
            ("textbook", "right", [_known(c.textbook, seconds) for c in cells]),
            ("predicted", "right", [_known(c.predicted, seconds) for c in cells]),
            ("grows", "right", [_times(g[0]) for g in growth]),
            ("by volume", "right", [_times(g[1]) for g in growth]),
        ]
        made.append(plain_table(heading, columns, ascii_only()))
    return made


def _known(value: float | None, text: Callable[[float | None], str]) -> str:
    return "" if value is None else text(value)


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"
