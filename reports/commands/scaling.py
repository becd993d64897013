"""``python -m reports scaling``."""

from __future__ import annotations

from busbar.commands import Command
from reports.commands.output import RunOptions, console, print_table, rows_of
from reports.commands.ruling import RuleOptions, print_rules


class ScalingCommand(RuleOptions, RunOptions, Command):
    """Speed-up and efficiency of runs on several numbers of ranks."""

    def run(self) -> int:
        """Print the tables, base case first, and who wins where."""
        from reports.analysis.quality import checklist
        from reports.tables.scaling import scaling, scaling_tables
        from reports.tables.winners import winners_map

        rows = rows_of(self)
        groups = scaling(rows)
        terminal = console()
        for shown in scaling_tables(groups, terminal.width):
            print_table(terminal, shown)
        for block in winners_map(rows, terminal.width):
            print("\n".join(block) + "\n")
        print_rules(terminal, checklist([s.row for series in groups for s in series]), self)
        return 0
