"""``list``: the collectives and their algorithms."""

from __future__ import annotations

import argparse

from busbar.tables import new_table
from collectives.commands.command import Subcommand, show
from collectives.schedule.catalogue import algorithm, algorithms, collectives, spec


def summary(collective: str, name: str) -> str:
    """What an algorithm says of itself in one line: not what it raises, which is not its cost."""
    doc = (algorithm(collective, name).__doc__ or "").strip().splitlines()
    return doc[0].partition(" Raises ")[0] if doc else ""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--collective", help="which collective")


def _list(options: argparse.Namespace) -> int:
    wanted = collectives() if options.collective is None else [spec(options.collective).name]
    table = new_table("", "collective", "algorithm", "cost in brief", text=3)
    for collective in wanted:
        for i, name in enumerate(algorithms(collective)):
            table.add_row(collective if i == 0 else "", name, summary(collective, name))
        table.add_section()
    show(table)
    return 0


COMMAND = Subcommand("the collectives and their algorithms", _options, _list)
