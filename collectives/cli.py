"""The command line of ``python -m collectives``: a table of commands, and how one is run.

Results go to standard output; an error is one line on standard error.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from busbar.arguments import Parser, program
from busbar.process import serve
from collectives.commands import (
    costing,
    fitting,
    foreign,
    listing,
    showing,
    simulating,
    verifying,
)
from collectives.commands.command import Subcommand

COMMANDS: Mapping[str, Subcommand] = {
    "list": listing.COMMAND,
    "show": showing.COMMAND,
    "verify": verifying.COMMAND,
    "cost": costing.COMMAND,
    "fit": fitting.COMMAND,
    "simulate": simulating.COMMAND,
    "import": foreign.IMPORT,
    "export": foreign.EXPORT,
}


def main(arguments: Sequence[str]) -> int:
    """Run one command; gives the exit status: 0, 1 for a failed proof, 2 for bad input."""

    def run() -> int:
        options = _parser().parse_args(arguments)
        return int(options.run(options))

    return serve("collectives", run)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=program("collectives"), description="Schedules of collectives: see, prove, cost."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        text = command.text
        one = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        one.set_defaults(run=command.run)
        command.options(one)
    return parser
