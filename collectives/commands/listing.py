"""``list``: the collectives and their algorithms."""

from __future__ import annotations

from busbar.commands import Command
from busbar.options import option
from busbar.tables import new_table
from collectives.commands.command import show
from collectives.schedule.catalogue import algorithm, algorithms, collectives, spec


def summary(collective: str, name: str) -> str:
    """The first line of an algorithm's docstring, without the errors that it raises."""
    doc = (algorithm(collective, name).__doc__ or "").strip().splitlines()
    return doc[0].partition(" Raises ")[0] if doc else ""


class ListCommand(Command):
    """The collectives and their algorithms."""

    collective: str | None = option("-c --collective  which collective")

    def run(self) -> int:
        """Print the table."""
        wanted = collectives() if self.collective is None else [spec(self.collective).name]
        table = new_table("", "collective", "algorithm", "cost in brief", text=3)
        for collective in wanted:
            for i, name in enumerate(algorithms(collective)):
                table.add_row(collective if i == 0 else "", name, summary(collective, name))
            table.add_section()
        show(table)
        return 0
