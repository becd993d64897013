"""``python -m reports model``."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from busbar.commands import Command
from busbar.errors import ReportError
from busbar.options import option
from busbar.units import parse_ranks, parse_size, sweep_sizes
from reports.commands.output import RunOptions, console, note, print_table, rows_of

if TYPE_CHECKING:
    from busbar.tables import Column, RenderedTable
    from reports.analysis.textbook import LawComparison

_MOST_RANKS = 256


class ModelCommand(RunOptions, Command):
    """Parameter server and ring by ranks and sizes: measured, predicted and by the textbook."""

    files: tuple[Path, ...] = option("RUN", (), nargs="*")
    n: str | None = option("-n RANKS  rank counts to predict, like 2-8,16 (default those of RUN)")
    minbytes: str | None = option("-b --minbytes SIZE  smallest size to predict (default 1M)")
    maxbytes: str | None = option("-e --maxbytes SIZE  largest size to predict (default 64M)")
    stepfactor: float = option("-f --stepfactor F  factor between sizes", 8.0)
    fit: Path | None = option("--fit FILE  predict with this fit (python -m collectives fit)")
    out: Path | None = option("--out FILE  draw a figure, .png or .svg")

    def run(self) -> int:
        """Print the tables and the verdict, and draw the figure."""
        from busbar.files import write
        from reports.analysis.predicted import open_machine
        from reports.analysis.textbook import compare
        from reports.figures.textbook import picture

        form = None
        if self.out is not None:
            form = self.out.suffix.removeprefix(".")
            if form not in ("png", "svg"):
                raise ReportError(f"{self.out}: no format for that ending; use .png or .svg")
        rows = rows_of(self)
        counts = self.n or ("" if rows else "2-8,12,16")
        ranks = parse_ranks(counts, _MOST_RANKS) if counts else []
        sizes = []
        if self.minbytes or self.maxbytes or not rows:
            ends = (self.minbytes or "1M", self.maxbytes or "64M")
            low, high = map(parse_size, ends)
            sizes = sweep_sizes(low, high, factor=self.stepfactor, step=None)
        # Beside measurements an assumed network would say nothing.
        predict, notes = open_machine(self.fit, assume=not rows)
        comparison = compare(rows, ranks, sizes, predict)
        terminal = console()
        for shown in (*_tables(comparison, terminal.width), *_growths(comparison, terminal.width)):
            print_table(terminal, shown)
        if comparison.verdict:
            print(fill(str(comparison.verdict), max(40, terminal.width)))
        for line in dict.fromkeys((*comparison.notes, *notes())):
            note(line)
        if self.out is not None and form is not None:
            write(self.out, picture(comparison, form))
            print(self.out)
        return 0


def _tables(comparison: LawComparison, width: int) -> list[RenderedTable]:
    from busbar.tables import render_rich
    from busbar.units import format_digits, format_rate, format_seconds, format_size
    from reports.analysis.textbook import ALGORITHMS, FORMULAS

    tables = []
    for name in ALGORITHMS:
        formula = FORMULAS[name]
        cells = comparison.of(name)
        if not cells:
            continue
        growth = [comparison.growth(c) for c in cells]
        columns: list[Column] = [
            ("ranks", "right", [str(c.ranks) for c in cells]),
            ("size", "right", [format_size(c.size) for c in cells]),
            (formula, "right", [f"{c.volume:.4g}n" for c in cells]),
            ("counted", "right", [f"{c.counted:.4g}n" for c in cells]),
            ("measured", "right", [format_digits(c.measured, format_seconds) for c in cells]),
            ("textbook", "right", [format_digits(c.over_ranks, format_seconds) for c in cells]),
            ("predicted", "right", [format_digits(c.predicted, format_seconds) for c in cells]),
            ("GB/s", "right", [format_digits(c.rate, format_rate) for c in cells]),
            ("grows", "right", [format_digits(g[0], "{:.2f}x".format) for g in growth]),
            ("by volume", "right", [format_digits(g[1], "{:.2f}x".format) for g in growth]),
        ]
        heading = f"all-reduce by {name}: busiest port {formula}"
        if comparison.growths:
            heading += "; GB/s: through it; textbook: at its size's rate"
        tables.append(render_rich(heading, columns, width, ("counted", "by volume")))
    return tables


def _growths(comparison: LawComparison, width: int) -> list[RenderedTable]:
    """The growth of time with P for each algorithm and size, as exponents."""
    from busbar.tables import render_rich
    from busbar.units import format_size

    growths = comparison.growths
    if not growths:
        return []
    columns: list[Column] = [
        ("algorithm", "left", [g.algorithm for g in growths]),
        ("size", "right", [format_size(g.size) for g in growths]),
        ("ranks", "left", [" ".join(map(str, g.ranks)) for g in growths]),
        ("time", "right", [f"P^{g.exponent:.2f}" for g in growths]),
        (
            "95 %",
            "right",
            ["" if g.low is None else f"{g.low:.2f} to {g.high:.2f}" for g in growths],
        ),
        ("its port", "right", [f"P^{g.port:.2f}" for g in growths]),
        ("all links", "right", [f"P^{g.links:.2f}" for g in growths]),
    ]
    heading = "growth with the number of ranks P: of time as measured, of bytes by the textbook"
    return [render_rich(heading, columns, width, ("ranks",))]
