"""The command line of reports: from arguments to an exit status, by the table of commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module

from busbar.arguments import Parser, program
from busbar.errors import ReportError
from busbar.process import serve
from reports.commands import COMMANDS
from reports.commands.compare import AGAINST


def main(argv: Sequence[str]) -> int:
    """Run a command; gives the exit status: see `busbar.status`.

    A gate whose output was not heard out (141) has not been passed.
    """

    def run() -> int:
        options = _options(argv)
        command: Callable[[argparse.Namespace], int] = options.run
        return command(options)

    return serve("reports", run)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    comparing = list(argv[:1]) == ["compare"]
    words = [AGAINST if comparing and word == "--" else word for word in argv]
    options, rest = _parser().parse_known_args(words)
    if comparing and not any(word.startswith("-") for word in rest):
        options.files, rest = [*options.files, *rest], []  # those behind an option
    if rest:
        raise ReportError(f"{options.command}: no argument {rest[0]}{_meant(options, rest)}")
    return options


def _meant(options: argparse.Namespace, rest: Sequence[str]) -> str:
    near = options.parser.nearest(rest)
    meant = f"; did you mean {near}?" if near else ""
    return f"{meant}; see {program('reports')} {options.command} --help"


def _parser() -> argparse.ArgumentParser:
    text = "Read logs and records; show, compare and draw them."
    parser = Parser(prog=program("reports"), description=text)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, place in COMMANDS.items():
        module = import_module(place)
        said = (module.__doc__ or "").split("\n", 1)[0].rstrip(".")
        made = commands.add_parser(name, help=said, description=said)
        made.set_defaults(run=module.run, command=name, parser=made)
        module.add(made)
    return parser
