"""The base class of commands, and tables of commands, which run the one that the first word names.

A table names its commands as text: a command is loaded when it is run or listed.
"""

from __future__ import annotations

import re
from argparse import HelpFormatter, RawDescriptionHelpFormatter
from collections.abc import Collection, Mapping, Sequence
from inspect import getdoc
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, ClassVar, NamedTuple

from busbar.arguments import Parser, program, unknown
from busbar.completion import completing
from busbar.errors import Unsupported
from busbar.options import OptionGroup, Self
from busbar.process import load

# A word with a folder, or with an ending, as of a file.
_FILE = re.compile(r"/|\w\.[a-z]{1,7}$", re.IGNORECASE)


class Command(OptionGroup):
    """A command. Its fields are its options, and its docstring is the description in ``--help``.

    ``USAGE``: replaces the usage that argparse makes from the options. ``EPILOG``: the end of
    ``--help``; its line breaks are kept. ``%(prog)s`` in both is the command's name. ``ELSEWHERE``:
    options of similar commands by name, with what to suggest in their place.
    """

    USAGE: ClassVar[str | None] = None
    EPILOG: ClassVar[str | None] = None
    ELSEWHERE: ClassVar[Mapping[str, str]] = {}

    def run(self) -> int:
        """Run the command; returns the exit status. Raises `BusbarError`."""
        raise NotImplementedError

    @classmethod
    def start(
        cls,
        name: str,
        argv: Sequence[str],
        commands: Sequence[str] = (),
        beside: Mapping[str, str] | None = None,
        **more: Any,
    ) -> int:
        """Run the command with the words ``argv``; returns the exit status. Raises `BusbarError`.

        See `read` for the arguments.
        """
        return cls.read(name, argv, commands, beside, **more).run()

    @classmethod
    def read(
        cls,
        name: str,
        argv: Sequence[str],
        commands: Sequence[str] = (),
        beside: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Self:
        """The command with the words ``argv``, which does not run. Raises Unsupported.

        ``name``: as after ``python -m``. ``commands``: further first words for shell completion.
        ``beside``: see `Parser`. ``more``: values of fields that are no options.
        """
        raw = "\n" in (cls.EPILOG or "")
        parser = cls.make_parser(
            prog=program(name),
            description=getdoc(cls),
            epilog=cls.EPILOG,
            usage=cls.USAGE,
            formatter_class=RawDescriptionHelpFormatter if raw else HelpFormatter,
        )
        if commands:
            completing(parser, argv, commands)
            parser.commands = commands
        parser.beside = {**(beside or {}), **cls.ELSEWHERE}
        return cls.parse(argv, parser, **more)


def list_commands(
    name: str, word: str, lines: Sequence[str], commands: Sequence[str], argv: Sequence[str]
) -> int:
    """Print the help of a program that runs ``commands``; returns the exit status.

    ``word``: what its help calls a command; ``lines``: a line on each, wrapped to the terminal.
    """
    room = max(40, get_terminal_size().columns)
    wrapped = [wrap(line, room, subsequent_indent=" " * 18 * (line[:1] == " ")) for line in lines]
    lines = [part for parts in wrapped for part in parts or [""]]
    parser = Parser(
        prog=name,
        usage=f"{name} {word} [options]   ({name} {word} --help)",
        epilog="\n".join(lines),
        formatter_class=RawDescriptionHelpFormatter,
    )
    completing(parser, argv, commands)
    parser.commands = commands
    parser.parse_args(argv or ["--help"])
    return 0


def no_command(
    word: str, known: Collection[str], reader: str, elsewhere: Mapping[str, str] | None = None
) -> Unsupported:
    """The error for a word that is no command; for a file's name, with ``reader``, which shows it.

    ``elsewhere``: names that other programs use, with the known name for each.
    """
    if Path(word).is_file():
        return Unsupported(f"no command {word!r}; is it {reader} {word}?")
    if _FILE.search(word):
        return Unsupported(f"no command or file {word!r}; {reader} FILE shows a file")
    return unknown("command", word, known, elsewhere=elsewhere)


class CommandTable(NamedTuple):
    """The commands of a package by name, each as ``module:Class`` after the prefix ``package``.

    ``default``: the command that runs if the first word is no command's name. ``elsewhere``: see
    `no_command`; or, as ``module:name``, the function that returns it from the words that follow.
    """

    description: str
    package: str
    entries: Mapping[str, str]
    default: str = ""
    elsewhere: Mapping[str, str] | str | None = None

    def start(self, name: str, argv: Sequence[str]) -> int:
        """Run the command that the first word names; see `Command.start`."""
        command = self.read(name, argv)
        return 0 if command is None else command.run()

    def read(self, name: str, argv: Sequence[str]) -> Command | None:
        """The command that the first word names, see `Command.read`; None after a list of them."""
        if argv and argv[0] in self.entries:
            beside = {one: f"{program(name)} {one}" for one in self.entries}
            return self.load(argv[0]).read(f"{name} {argv[0]}", argv[1:], beside=beside)
        if argv[:1] == ["help"]:
            return self.read(name, [*argv[1:], "--help"])
        if self.default:
            return self.load("").read(name, argv, list(self.entries))
        if argv and not argv[0].startswith("-"):
            elsewhere = self.elsewhere
            if isinstance(elsewhere, str):
                elsewhere = load(elsewhere)(argv[1:])
            raise no_command(argv[0], self.entries, f"{program(name)} show", elsewhere)
        parser = Parser(prog=program(name), description=self.description)
        commands = parser.add_subparsers(required=True, metavar="COMMAND")
        for command in self.entries:
            about = (getdoc(self.load(command)) or "").removesuffix(".")
            commands.add_parser(command, help=about)
        parser.parse_args(argv or ["--help"])
        return None

    def load(self, name: str) -> type[Command]:
        """Load the command called ``name``; the default command if ``name`` is empty."""
        command: type[Command] = load(self.package + self.entries.get(name, self.default))
        return command
