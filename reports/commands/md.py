"""``python -m reports md``."""

from __future__ import annotations

import sys
from pathlib import Path

from busbar.commands import Command
from busbar.options import option
from reports.commands.compare import NoiseOptions, compared, rules_of
from reports.commands.output import LogOptions, read_noting


class MdCommand(NoiseOptions, LogOptions, Command):
    """Markdown for a pull request: a run, or NEW against BASE."""

    base: Path = option("RUN  the run, or the base when NEW is given")
    new: Path | None = option("NEW  the run to compare with the base", nargs="?")

    def run(self) -> int:
        """Print the tables."""
        from reports.analysis.launches import over_launches
        from reports.tables.markdown import comparison_markdown, markdown

        rows = read_noting(self.base, self.ranks).rows
        if self.new is None:
            sys.stdout.write(markdown(over_launches(rows)))
        else:
            new = read_noting(self.new, self.ranks).rows
            comparisons, differing, _ = compared(rows, new, self)
            rules = rules_of(rows, new, comparisons)
            sys.stdout.write(comparison_markdown(comparisons, differing, rules))
        return 0
