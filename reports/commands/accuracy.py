"""``python -m reports accuracy``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.commands import Command
from busbar.errors import ReportError
from busbar.options import option
from reports.commands.output import RunOptions, console, note, read_noting
from reports.records.measurement import LIBRARY, Measurement

if TYPE_CHECKING:
    from collectives.predict.fit import Fit
    from reports.tables.accuracy import AccuracyPoint


class AccuracyCommand(RunOptions, Command):
    """Median and 95th percentile of predictions' error on runs that the fit has not seen."""

    fit: Path | None = option("--fit FILE  predict with this fit (python -m collectives fit)")
    nccl_log: Path | None = option(
        "--nccl-log FILE  NCCL's log of its graphs; library rows are compared with NCCL's published"
        " model"
    )
    sm: int = option("--sm  compute capability with --nccl-log", 90)
    nodes: int = option("--nodes  nodes with --nccl-log", 1)
    format: str = option("--format", "table", choices=("table", "md", "csv"))

    def run(self) -> int:
        """Print the table; 2 when there is nothing that the fit could be held against."""
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
            what = ", ".join(dict.fromkeys(_setting(p.row) for p in points))
            terminal.print(f"{what}: relative error of predictions, median/p95 in %", style="bold")
            for table in accuracy.tables(by_group, terminal.width):
                terminal.print(table)
            terminal.print(
                "columns: decades of the size in bytes; ratio: median of predicted/measured"
            )
        return 0


def _setting(row: Measurement) -> str:
    words = (row.collective, row.transport, f"{row.ranks} ranks" if row.ranks else "")
    return " ".join(word for word in words if word)


def _by_fit(rows: Sequence[Measurement], fit: Fit) -> list[AccuracyPoint]:
    """The rows that the fit's transport carried, with predictions; says what is left out."""
    from reports.analysis.predicted import predictions
    from reports.tables.accuracy import AccuracyPoint

    transports = {costs.transport for costs in fit.costs}
    mine = [r for r in rows if r.transport in transports or not r.transport]
    ours = [r for r in rows if r.algorithm != LIBRARY]
    other = sum(r.transport not in transports and bool(r.transport) for r in ours)
    if other:
        names = ", ".join(sorted(transports))
        note(f"{other} rows of another transport than the fit's ({names}) are left out")
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
