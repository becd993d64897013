"""Commands: what one is, tables of them, and how the words of a command line reach one.

A table names its commands as text: a command is loaded when it is run or listed.
"""

from __future__ import annotations

from argparse import HelpFormatter, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from inspect import getdoc
from typing import ClassVar, NamedTuple

from busbar.arguments import Parser, program
from busbar.completion import completing
from busbar.options import OptionGroup
from busbar.process import load


class Command(OptionGroup):
    """A command: its fields are its options, and its docstring is what ``--help`` says of it.

    ``USAGE``: where it is not made from the options. ``EPILOG``: the end of ``--help``; with lines
    of its own it is shown line by line. Both take ``%(prog)s``.
    """

    USAGE: ClassVar[str | None] = None
    EPILOG: ClassVar[str | None] = None

    def run(self) -> int:
        """Run it; gives the exit status. Raises our errors."""
        raise NotImplementedError

    @classmethod
    def start(cls, name: str, argv: Sequence[str], commands: Sequence[str] = ()) -> int:
        """Run it with these words; gives the exit status. Raises our errors.

        ``name``: as behind ``python -m``. ``commands``: other first words that a shell offers.
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
        return cls.parse(argv, parser).run()


class CommandTable(NamedTuple):
    """The commands of a room by name, as ``module:Class`` behind the prefix ``package``.

    ``default``: the command for words of which the first is no name.
    """

    description: str
    package: str
    entries: Mapping[str, str]
    default: str = ""

    def start(self, name: str, argv: Sequence[str]) -> int:
        """Run the command that the first word names, as `Command.start`."""
        if argv and argv[0] in self.entries:
            return self.load(argv[0]).start(f"{name} {argv[0]}", argv[1:])
        if self.default:
            return self.load("").start(name, argv, list(self.entries))
        parser = Parser(prog=program(name), description=self.description)
        commands = parser.add_subparsers(required=True, metavar="COMMAND")
        for command in self.entries:
            about = (getdoc(self.load(command)) or "").removesuffix(".")
            commands.add_parser(command, help=about)
        parser.parse_args(argv)
        return 0

    def load(self, name: str) -> type[Command]:
        """The command of a name; the default for the empty one."""
        command: type[Command] = load(self.package + self.entries.get(name, self.default))
        return command
