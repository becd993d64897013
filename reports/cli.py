"""The command line of reports: from arguments to an exit status, by the table of commands."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from busbar.errors import ReportError
from reports.commands import COMMANDS
from reports.commands.output import note

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Run a command; gives the exit status.

    0 well, 1 a threshold was not kept, 2 a file or an option cannot be used, 141 whoever read our
    output has gone (as a shell reports it: a gate that was not heard out has not been passed).
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without UTF-8 gets a mark, no crash
        sys.stdout.reconfigure(errors="replace")
    try:
        options = _options(argv)
        command: Callable[[argparse.Namespace], int] = options.run
        status = command(options)
        sys.stdout.flush()
        return status
    except ReportError as error:
        note(str(error))
        return error.exit_status
    except OSError as error:  # files are a ReportError where they fail, so this is standard output
        # What is still buffered has nowhere to go; the interpreter would complain at its end.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # as `head` does
            return 141
        note(f"{error.filename or 'standard output'}: cannot be written: {error.strerror}")
        return 2


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are our errors, of one line."""

    def error(self, message: str) -> NoReturn:
        """Raise ReportError where argparse would print its usage and leave."""
        raise ReportError(f"{message}; see {self.prog} --help")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    options, rest = _parser().parse_known_args(argv)
    if rest:
        name = options.command
        raise ReportError(f"{name}: no argument {rest[0]}; see python -m reports {name} --help")
    return options


def _parser() -> argparse.ArgumentParser:
    text = "Read logs and records; show, compare and draw them."
    parser = _Parser(prog="python -m reports", description=text, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, place in COMMANDS.items():
        module = import_module(place)
        said = (module.__doc__ or "").split("\n", 1)[0].rstrip(".")
        made = commands.add_parser(name, help=said, description=said, allow_abbrev=False)
        made.set_defaults(run=module.run, command=name)
        module.add(made)
    return parser
