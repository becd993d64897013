"""``busbar reports model`` and ``accuracy``: compare measured with predicted times."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from busbar.commands import Command
from busbar.errors import ReportError
from busbar.options import option
from busbar.units import format_count, format_ranks, parse_ranks, parse_size, sweep_sizes
from reports.commands.output import RunOptions, console, note, print_table, read_noting, rows_of
from reports.records.measurement import LIBRARY, Measurement, is_emulated

if TYPE_CHECKING:
    from busbar.tables import Column, RenderedTable
    from collectives.predict.fit import Fit
    from reports.analysis.textbook import LawComparison
    from reports.tables.accuracy import AccuracyPoint


_MOST_RANKS = 256


class ModelCommand(RunOptions, Command):
    """Parameter server and ring by ranks and sizes: measured, predicted and by the law."""

    files: tuple[Path, ...] = option("RUN", (), nargs="*")
    n: str | None = option("-n RANKS  rank counts to predict, like 2-8,16 (default those of RUN)")
    minbytes: str | None = option("-b --minbytes SIZE  smallest size to predict (default 1M)")
    maxbytes: str | None = option("-e --maxbytes SIZE  largest size to predict (default 64M)")
    stepfactor: float = option("-f --stepfactor F  factor between sizes", 8.0)
    fit: Path | None = option("--fit FILE  predict with this fit (busbar collectives fit)")
    out: Path | None = option("-o --out FILE  draw a figure, .png or .svg")

    def run(self) -> int:
        """Print the tables and the verdict, and draw the figure."""
        from busbar.files import write_figure
        from reports.analysis.launches import over_launches
        from reports.analysis.predicted import open_machine
        from reports.analysis.textbook import compare
        from reports.figures.textbook import picture

        form = None
        if self.out is not None:
            form = self.out.suffix.removeprefix(".")
            if form not in ("png", "svg"):
                raise ReportError(f"{self.out}: no format for that ending; use .png or .svg")
        rows = over_launches(rows_of(self))
        counts = self.n or ("" if rows else "2-8,12,16")
        ranks = parse_ranks(counts, _MOST_RANKS) if counts else []
        sizes = []
        if self.minbytes or self.maxbytes or not rows:
            ends = (self.minbytes or "1M", self.maxbytes or "64M")
            low, high = map(parse_size, ends)
            sizes = sweep_sizes(low, high, factor=self.stepfactor, step=None)
        # With measurements, predictions for an assumed network would have no meaning.
        predict, notes = open_machine(self.fit, assume=not rows)
        comparison = compare(rows, ranks, sizes, predict)
        terminal = console()
        emulated = any(is_emulated(row.run.environment) for row in rows)
        shown_tables = _tables(comparison, terminal.width)
        for shown in (*shown_tables, *_growths(comparison, terminal.width, emulated)):
            print_table(terminal, shown)
        if comparison.verdict:
            print(fill(str(comparison.verdict), max(40, terminal.width)))
        bare = [_UNPREDICTED] * (self.fit is None and bool(rows))
        for line in dict.fromkeys((*comparison.notes, *bare, *notes())):
            note(line)
        if self.out is not None and form is not None:
            write_figure(self.out, picture(comparison, form))
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
            (formula, "right", [f"{c.volume:.4g}N" for c in cells]),
            ("counted", "right", [f"{c.counted:.4g}N" for c in cells]),
            ("measured", "right", [format_digits(c.measured, format_seconds) for c in cells]),
            ("law, fitted", "right", [format_digits(c.over_ranks, format_seconds) for c in cells]),
            ("predicted", "right", [format_digits(c.predicted, format_seconds) for c in cells]),
            ("GB/s", "right", [format_digits(c.rate, format_rate) for c in cells]),
            ("grows", "right", [format_digits(g[0], "{:.2f}x".format) for g in growth]),
            ("by volume", "right", [format_digits(g[1], "{:.2f}x".format) for g in growth]),
        ]
        heading = f"all-reduce by {name}: busiest port {formula}"
        if comparison.growths:
            heading += "; GB/s: through it; law, fitted: at their median"
        tables.append(render_rich(heading, columns, width, ("counted", "by volume")))
    return tables


def _growths(comparison: LawComparison, width: int, emulated: bool) -> list[RenderedTable]:
    """A table of the growth of time with P, as exponents, by algorithm and size.

    ``emulated``: some rows are of emulated hosts.
    """
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
        ("law", "right", [f"P^{g.port:.2f}" for g in growths]),
        ("all links", "right", [f"P^{g.links:.2f}" for g in growths]),
    ]
    heading = "growth with the number of ranks P: of time, by the law, of all links' bytes"
    shown = render_rich(heading, columns, width, ("ranks",))
    legend = _EXPONENT + _BURST * emulated
    return [replace(shown, footnote=fill(legend, max(40, width)))]


_UNPREDICTED = "no predicted times: --fit FILE gives the costs of links (busbar collectives fit)"
_EXPONENT = (
    "P^e: the slope of log time, or of log bytes, over log P. 2N(P-1) grows faster than P where P"
    " is small: from 2 to 4 ranks P-1 grows 3 times, and log 3 / log 2 = 1.58."
)
_BURST = (
    " GB/s above the rate of an emulated port: after a pause a port passes some bytes at once (a"
    " burst), which counts most in small messages."
)


class AccuracyCommand(RunOptions, Command):
    """Median and 95th percentile of predictions' error on runs that the fit has not seen."""

    fit: Path | None = option("--fit FILE  predict with this fit (busbar collectives fit)")
    nccl_log: Path | None = option(
        "--nccl-log FILE  NCCL's log of its graphs; library rows are compared with NCCL's published"
        " model"
    )
    sm: int = option("--sm  compute capability with --nccl-log", 90)
    nodes: int = option("--nodes  nodes with --nccl-log", 1)
    format: str = option("--format", "table", choices=("table", "md", "csv"))

    def run(self) -> int:
        """Print the table. Raises ReportError if no measured row has a prediction."""
        from reports.analysis.predicted import open_fit, sources
        from reports.tables import accuracy

        if self.fit is None and self.nccl_log is None:
            raise ReportError("accuracy: give --fit FILE, or --nccl-log FILE for library rows")
        fit = None if self.fit is None else open_fit(self.fit)
        points: list[AccuracyPoint] = []
        rows: list[Measurement] = []
        for path in self.files:
            if fit is not None and fit.sources & sources(path):
                raise ReportError(f"{path}: {fit.name} was fitted on it; accuracy needs other data")
            rows += [r for r in read_noting(path, self.ranks).rows if r.time_s]
        rows = accuracy.pooled(rows)
        if fit is not None:
            points += _by_fit(rows, fit)
        if self.nccl_log is not None:
            points += _by_nccl(rows, self.nccl_log, self)
        if not points:
            raise ReportError("no measured row has a prediction")
        by_group = accuracy.errors(points)
        if self.format == "csv":
            sys.stdout.write(accuracy.as_csv(points))
        elif self.format == "md":
            sys.stdout.write(accuracy.as_markdown(by_group))
        else:
            terminal = console()
            settings = [
                (p.row.collective, p.row.transport, format_ranks(p.row.ranks)) for p in points
            ]
            what = ", ".join(" ".join(filter(None, one)) for one in dict.fromkeys(settings))
            terminal.print(f"{what}: relative error of predictions, median/p95 in %", style="bold")
            for table in accuracy.tables(by_group, terminal.width):
                terminal.print(table, crop=False)
            terminal.print(
                "columns: decades of the size in bytes; ratio: median of predicted/measured"
            )
        return 0


def _by_fit(rows: Sequence[Measurement], fit: Fit) -> list[AccuracyPoint]:
    """Rows of the fit's transport with predictions. Prints which rows are left out."""
    from reports.analysis.predicted import predictions
    from reports.tables.accuracy import AccuracyPoint

    transports = {costs.transport for costs in fit.costs}
    mine = [r for r in rows if r.transport in transports or not r.transport]
    ours = [r for r in rows if r.algorithm != LIBRARY]
    other = sum(r.transport not in transports and bool(r.transport) for r in ours)
    if other:
        names = ", ".join(sorted(transports))
        note(f"{format_count(other, 'row')} of another transport than the fit's ({names}) left out")
    measured = {costs.ranks for costs in fit.costs}
    for ranks in sorted({r.ranks for r in mine if r.ranks} - measured):
        for line in fit.for_ranks(ranks).notes[-1:]:
            note(f"{ranks} ranks: the fit was {line}")
    predicted = predictions(mine, fit)
    return [
        AccuracyPoint(r, r.time_s, time)
        for r, time in zip(mine, predicted, strict=True)
        if r.time_s and time is not None
    ]


def _by_nccl(
    rows: Sequence[Measurement], log: Path, options: AccuracyCommand
) -> list[AccuracyPoint]:
    from reports.analysis.predicted import nccl_machine, nccl_seconds
    from reports.tables.accuracy import AccuracyPoint

    points = []
    for r in rows:
        if r.ranks and r.time_s and r.algorithm in ("", LIBRARY):
            machine = nccl_machine(log, options.sm, r.ranks, options.nodes)
            time = nccl_seconds(r, machine)
            if time is not None:
                points.append(AccuracyPoint(r, r.time_s, time))
    return points
