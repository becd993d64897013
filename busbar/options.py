"""Options declared once: the fields of a dataclass are a command line, its help and its values.

The options of a command are the fields of a class that derives from `OptionGroup`. argparse parses
(`busbar.arguments`). It never sees a default: the class has it.
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
        """Do nothing: what type checkers are told."""
        return lambda cls: cls


# What turns an option's text into a field of such a type, where nothing else is named.
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

    ``text``: as ``--help`` shows it: names and value, two spaces, and what it is
    (``"-n --iters N  iterations"``); the value alone for a positional argument, no help for an
    option that is not listed. The default is appended unless the help speaks of one. ``parse``
    turns the option's text into its value; whole numbers, numbers and paths need none.

    ``more``: keywords of argparse's ``add_argument``, of which lists become tuples; ``title``: of
    the group that begins with this option; ``completes``: names that a shell offers for the value;
    ``alternatives``: the name of options that exclude each other.
    """
    return field(default=default, metadata={"text": text, "type": parse, **more})


def switch(text: str, **more: Any) -> Any:
    """Declare an option that is there or not."""
    return option(text, False, action="store_true", **more)


def redefine(group: type[OptionGroup], name: str, default: Any, **more: Any) -> Any:
    """Declare an option of a base class again, with another default and ``more`` keywords."""
    return field(default=default, metadata={**group.__dataclass_fields__[name].metadata, **more})


class JoinLists(argparse.Action):
    """An option whose value is a list; where it is given again, its lists add up."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, value: Any, flag: object = None
    ) -> None:
        """Add the value to the one before: texts with a comma between, tuples as they are."""
        if self.dest in namespace:
            earlier = getattr(namespace, self.dest)
            value = f"{earlier},{value}" if isinstance(value, str) else earlier + value
        setattr(namespace, self.dest, value)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(option, switch, redefine, field)
)
@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Base of all classes of options, the values of one command line. Each is a frozen dataclass.

    ``given``: the fields that the command line has; ``argv``: its words. ``titles``: of groups of
    options, in the order of ``--help``; others follow in the order of the fields.
    """

    titles: ClassVar[tuple[str, ...]] = ()

    given: frozenset[str] = field(default=frozenset(), compare=False)
    argv: tuple[str, ...] = field(default=(), compare=False)

    def __init_subclass__(cls) -> None:
        """Make a dataclass of every class of options."""
        dataclass(frozen=True, kw_only=True)(cls)

    def replace(self, **changes: Any) -> Self:
        """The same options but for these fields."""
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
        """The options of a command line. Raises Unsupported with one line for what is wrong.

        ``more``: fields that are no options.
        """
        return cls.of(parser.parse_args(argv), argv, **more)

    @classmethod
    def of(cls, parsed: argparse.Namespace, argv: Sequence[str], **more: Any) -> Self:
        """The options that a parser has found in a command line, checked."""
        values = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in vars(parsed).items()
            if name in cls.__dataclass_fields__
        }
        return cls(**values, given=frozenset(values), argv=tuple(argv), **more).checked()

    def checked(self) -> Self:
        """These options. Raises Unsupported for what is wrong or does not go together."""
        return self


class CommandWords(OptionGroup):
    """The words after ``--``: a ``command`` with options of its own."""

    command: tuple[str, ...] = ()

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: Any) -> Self:
        """The options and the command of a command line. Raises Unsupported."""
        own, command = list(argv), list[str]()
        if "--" in own:
            at = own.index("--")
            own, command = own[:at], own[at + 1 :]
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
    # argparse itself takes the default of a positional argument that is left out.
    left_out = more.get("nargs") == "?" and not names
    more["default"] = one.default if left_out else argparse.SUPPRESS
    more["help"] = _help(text, one, bool(names))
    action = group.add_argument(*(names or [one.name]), **more)
    if completes:
        offer(action, completes)


def _help(text: str, one: Field[Any], named: bool) -> str | None:
    """The help of an option, with its default, as argparse formats it; ``named``: by a flag."""
    told = one.default is None or one.default is False or one.default in ((), "")
    if not told and "default" not in text:
        shown = f"default {_shown(one.default)}"
        text = f"{text} ({shown})" if text else shown
    return text.replace("%", "%%") or (argparse.SUPPRESS if named else None)


def _shown(value: Any) -> str:
    if type(value) is tuple:
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
