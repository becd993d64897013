"""``python -m reports plot``."""

from __future__ import annotations

from pathlib import Path

from busbar.commands import Command
from busbar.errors import ReportError
from busbar.options import option
from reports.commands.output import MachineOptions, RunOptions, make_folder, rows_of


class PlotCommand(MachineOptions, RunOptions, Command):
    """Figures: busbw, latency, iterations, scaling, P x P heat maps, training steps."""

    out: Path = option("--out DIR  folder (default .), created if it is missing", Path())
    format: str = option("--format", "png", choices=("png", "svg", "pdf"))

    def run(self) -> int:
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

        limit = None if self.limit is None else parse_rate(self.limit)
        if not self.out.is_dir() and (self.out.exists() or not self.out.parent.is_dir()):
            raise ReportError(f"{self.out}: is no folder, and none can be made there")
        machine = read_machine(self.topology) if self.topology else None
        records = [one for path in self.files for one in step_measurements(path)]
        # Of steps neither sizes nor busbw say anything: they have figures of their own.
        rows = [row for row in over_launches(rows_of(self)) if not row.collective.startswith(STEP)]
        pictures = figures(rows, self.format, limit, machine) if rows or not records else {}
        steps = summaries(records)
        if any(one.family or one.loss for one in steps):
            pictures["steps"] = picture(steps, self.format)
        if (drawn := bars(records, self.format)) is not None:
            pictures["steps-exposed"] = drawn
        for name, data in pictures.items():
            make_folder(self.out)
            target = self.out / f"{name}.{self.format}"
            write(target, data)
            print(target)
        return 0
