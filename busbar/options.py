"""Declare the options of a command as fields of a dataclass, which also holds their values.

The options of a command are the fields of a class that derives from `OptionGroup`. The parser and
its help are made from the fields (`busbar.arguments`). Defaults are in the class, not in argparse.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from busbar.arguments import Parser
from busbar.completion import offer

if TYPE_CHECKING:
    from typing_extensions import Self as Self
    from typing_extensions import dataclass_transform
else:
    Self = Any

    def dataclass_transform(**_: object) -> Any:
        """Do nothing; only type checkers need this decorator."""
        return lambda cls: cls


# The functions that parse an option's text by the field's type, unless ``parse`` is given.
_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "Path": Path,
    "tuple[Path, ...]": Path,
}


def option(
    text: str, default: Any = None, parse: Callable[[str], Any] | None = None, **more: Any
) -> Any:
    """Declare an option as a field of a class of options.

    ``text``: names and value, two spaces, and the help (``"-n --iters N  iterations"``). A
    positional argument has no names; an option without a help text is not listed in ``--help``. The
    default is appended unless the help has the word. ``parse`` converts the option's text to its
    value; whole numbers, numbers and paths need none.

    ``more``: keywords of argparse's ``add_argument``; lists become tuples. Also ``title``: the
    title of the group that begins with this option; ``completes``: what a shell offers for the
    value (see `busbar.completion.offer`); ``alternatives``: a common name for options that exclude
    each other.
    """
    return field(default=default, metadata={"text": text, "type": parse, **more})


def switch(text: str, **more: Any) -> Any:
    """Declare an option without a value: True if it is given, else False."""
    return option(text, False, action="store_true", **more)


def redefine(group: type[OptionGroup], name: str, default: Any, **more: Any) -> Any:
    """Declare an option of a base class again, with another default and ``more`` keywords."""
    return field(default=default, metadata={**group.__dataclass_fields__[name].metadata, **more})


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(option, switch, redefine, field)
)
@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Base class of all options: a frozen dataclass with the values of one command line.

    ``given``: the fields that are set on the command line; ``argv``: its words. ``titles``: titles
    of option groups in the order of ``--help``; other groups follow in the order of the fields.
    """

    titles: ClassVar[tuple[str, ...]] = ()

    given: frozenset[str] = field(default=frozenset(), compare=False)
    argv: tuple[str, ...] = field(default=(), compare=False)

    def __init_subclass__(cls) -> None:
        """Make every subclass a dataclass."""
        dataclass(frozen=True, kw_only=True)(cls)

    def replace(self, **changes: Any) -> Self:
        """A copy of the options in which these fields are changed."""
        return replace(self, **changes)

    @classmethod
    def make_parser(cls, **about: Any) -> Parser:
        """The parser of the class's command line. ``about``: argparse's keywords for a parser."""
        parser, title = Parser(**about), ""
        for first in cls.titles:
            parser.group(first)
        for one in fields(cls):
            if one.metadata:
                title = one.metadata.get("title", title)
                _add(parser, title, one)
        return parser

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: Any) -> Self:
        """The options of a command line. Raises Unsupported with a line that names the error.

        ``more``: values of fields that are no options.
        """
        return cls.of(parser.parse_args(argv), argv, **more)

    @classmethod
    def of(cls, parsed: argparse.Namespace, argv: Sequence[str], **more: Any) -> Self:
        """The options from a parser's result, checked (see `checked`)."""
        values = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in vars(parsed).items()
            if name in cls.__dataclass_fields__
        }
        return cls(**values, given=frozenset(values), argv=tuple(argv), **more).checked()

    def checked(self) -> Self:
        """These options. Raises Unsupported if an option is wrong or excludes another one."""
        return self


class CommandWords(OptionGroup):
    """Options followed by ``--`` and a ``command``, whose words are not parsed here."""

    command: tuple[str, ...] = ()
    #: What stands before a command of Busbar's after ``--``.
    PREFIX: ClassVar[str] = ""

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: Any) -> Self:
        """The options and the command of a command line. Raises Unsupported; see `OptionGroup`."""
        own, command = list(argv), list[str]()
        if "--" in own:
            at = own.index("--")
            own, command = own[:at], own[at + 1 :]
        parser.before_command = f"-- {cls.PREFIX}"
        parsed = super().parse(own, parser, command=tuple(command), **more)
        return parsed.replace(argv=tuple(argv))


def _add(parser: Parser, title: str, one: Field[Any]) -> None:
    """Add a field's option to a parser."""
    more = {key: value for key, value in one.metadata.items() if value is not None}
    shown, _, text = more.pop("text").partition("  ")
    names, completes = shown.split(), more.pop("completes", ())
    group = parser.group(more.pop("title", title), more.pop("alternatives", ""))
    if not names[-1].startswith("-"):
        more["metavar"] = names.pop()
    if "action" not in more and (parse := _PARSERS.get(str(one.type).removesuffix(" | None"))):
        more.setdefault("type", parse)
    if callable(more.get("choices")):
        more["choices"] = more["choices"]()
    if names:
        more["dest"] = one.name
    # A positional argument that is left out gets its default from argparse.
    left_out = more.get("nargs") == "?" and not names
    more["default"] = one.default if left_out else argparse.SUPPRESS
    more["help"] = _help(text, one, bool(names))
    action = group.add_argument(*(names or [one.name]), **more)
    if completes:
        offer(action, completes)


def _help(text: str, one: Field[Any], named: bool) -> str | None:
    """The help of an option with its default, for argparse. ``named``: it is not positional."""
    obvious = one.default is None or one.default is False or one.default in ((), "")
    if not obvious and "default" not in text:
        shown = f"default {_shown(one.default)}"
        text = f"{text} ({shown})" if text else shown
    return text.replace("%", "%%") or (argparse.SUPPRESS if named else None)


def _shown(value: Any) -> str:
    if type(value) is tuple:
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
