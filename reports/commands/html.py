"""``python -m reports html``."""

from __future__ import annotations

from pathlib import Path

from busbar.commands import Command
from busbar.errors import ReportError
from busbar.options import option
from reports.commands.output import MachineOptions, RunOptions, read_noting
from reports.readers.codec import step_measurements


class HtmlCommand(MachineOptions, RunOptions, Command):
    """One page for the browser, of one run or several."""

    out: Path = option("--out FILE  file of the page (.html)", required=True)
    title: str = option("--title  heading of the page", "")

    def run(self) -> int:
        """Write the page and print its name."""
        from busbar.files import write
        from reports.analysis.expect import parse_rate
        from reports.analysis.launches import over_launches
        from reports.analysis.machine import read_machine
        from reports.page import page
        from reports.page.payload import MOST_ROWS
        from reports.records.table import folded

        if self.out.suffix not in (".html", ".htm"):
            raise ReportError(f"{self.out}: name the page with .html at its end")
        limit = None if self.limit is None else parse_rate(self.limit)
        machine = read_machine(self.topology) if self.topology else None
        files = [read_noting(path, self.ranks) for path in self.files]
        steps = [one for path in self.files for one in step_measurements(path)]
        notes = [str(note) for reading in files for note in reading.notes]
        every, limit_note = sum(len(reading.rows) for reading in files), ""
        parts = [reading.rows for reading in files]
        if every > MOST_ROWS:
            parts = [folded(rows) for rows in parts]
            limit_note = (
                f"{every:,} rows: those that measured one thing are one, with all iterations"
            )
        rows = over_launches([row for part in parts for row in part])
        write(self.out, page(rows, machine, limit, self.title, notes, steps, limit_note))
        print(self.out)
        return 0
