"""The command line of reports: from arguments to an exit status, by the table of commands."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from reports.commands import COMMANDS
from reports.commands.output import note
from reports.errors import ReportError

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Run a command; 0 well, 1 a threshold was not kept, 2 a file or an option cannot be used."""
    options = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without UTF-8 gets a mark, no crash
        sys.stdout.reconfigure(errors="replace")
    command: Callable[[argparse.Namespace], int] = options.run
    try:
        return command(options)
    except ReportError as error:
        note(str(error))
        return error.exit_status
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    text = "Read logs and records; show, compare and draw them."
    parser = argparse.ArgumentParser(prog="python -m reports", description=text)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, place in COMMANDS.items():
        module = import_module(place)
        said = (module.__doc__ or "").split("\n", 1)[0].rstrip(".")
        made = commands.add_parser(name, help=said, description=said)
        made.set_defaults(run=module.run)
        module.add(made)
    return parser
