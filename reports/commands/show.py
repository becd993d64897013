"""``python -m reports show``."""

from __future__ import annotations

import sys
from pathlib import Path

from busbar.commands import Command
from busbar.errors import ReportError
from busbar.options import option
from reports.commands.expecting import ExpectOptions, expect, wanted
from reports.commands.output import (
    RunOptions,
    ascii_only,
    console,
    note,
    print_table,
    read_noting,
    rows_of,
)
from reports.commands.ruling import RuleOptions, print_rules
from reports.records.measurement import Measurement


class ShowCommand(ExpectOptions, RuleOptions, RunOptions, Command):
    """Tables with intervals and distributions."""

    fit: Path | None = option(
        "--fit FILE  predictions and lower bounds of this fit (python -m collectives fit) beside"
        " the times"
    )

    format: str = option(
        "--format  tables, all rows in another form (csv, json), or Markdown (md)",
        "table",
        choices=("table", "csv", "json", "md"),
    )

    def run(self) -> int:
        """Print each file's tables; 1 when an expectation is not kept."""
        return self._tables() if self.format == "table" else self._document()

    def _document(self) -> int:
        """Print the rows of all files as one text. Raises ReportError with rules."""
        from reports.analysis.launches import over_launches
        from reports.exports.imported import WRITERS
        from reports.tables.markdown import markdown

        if wanted(self).rules:
            raise ReportError(f"--expect prints lines of its own; leave out --format {self.format}")
        rows = rows_of(self)
        if self.format == "md":
            sys.stdout.write(markdown(over_launches(rows)))
        else:
            sys.stdout.write(WRITERS[self.format](rows))
        return 0

    def _tables(self) -> int:
        from reports.analysis.cautions import warnings_of
        from reports.analysis.launches import over_launches
        from reports.analysis.quality import checklist
        from reports.records.table import folded
        from reports.tables.show import tables
        from reports.tables.winners import answer

        selection = wanted(self)
        terminal, rows = console(), list[Measurement]()
        fit = None
        if self.fit is not None:
            from reports.analysis.predicted import beside, open_fit

            fit = open_fit(self.fit)
        for path in self.files:
            every = read_noting(path, self.ranks).rows
            together = folded(every)
            shown = over_launches(together)
            rows += shown
            expected = () if fit is None else (beside(shown, fit),)
            for table in tables(shown, terminal.width, ascii_only(), *expected):
                print_table(terminal, table)
            if best := answer(together, terminal.width):
                print("\n".join(best))
            if len(shown) < len(every):
                note(
                    f"{path}: {len(every)} rows, shown as {len(shown)}: iterations of the same"
                    " together"
                )
            for warning in warnings_of(together):
                note(f"{path}: {warning}")
        print_rules(terminal, checklist(rows, limit=selection.limit), self)
        return expect(selection, rows)
