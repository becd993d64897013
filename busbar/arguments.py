"""Command-line parsers that raise errors of one line, and converters for bounded numbers.

This module does not know what options mean.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from busbar.aliases import ROOMS
from busbar.completion import completing
from busbar.errors import BusbarError, MissingFile, Unsupported
from busbar.installation import busbar_version, revision
from busbar.launchers import speaks
from busbar.units import parse_quantity

# Enough digits for all bounds of whole numbers. int() would raise another error for thousands of
# digits.
_DIGITS = re.compile(r"\s*([+-]?[0-9]{1,18})\s*", re.ASCII)
_SHOWN = 40
#: Seconds of each unit of a time on the command line.
TIMES: Mapping[str, float] = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SIZE = re.compile("[0-9]+[KMGT]i?B?", re.IGNORECASE)
_SHORT = 10  # numbers of a span that a message lists
# A long option with one dash, such as -ranks.
_SINGLE_DASH = re.compile("-[a-z_]{3,}")
# Words that are values though they begin with a dash, for the messages of those who read them.
_NEGATIVE = re.compile(r"-\.?[0-9]")


def program(module: str) -> str:
    """How this process was started: ``busbar allreduce``, or ``python -m bench.allreduce``."""
    ours = Path(sys.argv[0]).name == "busbar" or Path(sys.argv[0]).parent.name == "busbar"
    return f"busbar {module.removeprefix('bench.')}" if ours else f"python -m {module}"


#: Environment variable of ranks: how the process that starts them was started, see `command`.
STARTED = "BUSBAR_STARTED"


def command(name: str) -> str:
    """The words that start the command ``name`` as this process was started, to be pasted.

    ``.venv/bin/busbar allreduce`` or ``.venv/bin/python -m bench.allreduce``; ``busbar allreduce``
    if that is found, and for programs that import Busbar.
    """
    return f"{os.environ.get(STARTED) or started()}{name}"


def started() -> str:
    """What stands before the name in `command`: ``busbar `` or ``python -m bench.``."""
    if Path(sys.argv[0]).name == "busbar":
        return f"{_typed(sys.argv[0])} "
    module = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "")
    room = module.partition(".")[0]
    if room not in ("busbar", *ROOMS):
        return "busbar "
    return f"{_typed(sys.executable)} -m {'busbar ' if room == 'busbar' else 'bench.'}"


def _typed(program: str) -> str:
    """A program as a shell takes it here: its name if it is found, else its path.

    The path begins at the working directory, or with ``~``, if it is below.
    """
    path = Path(program).absolute()
    if (on_path := shutil.which(path.name)) and Path(on_path).absolute() == path:
        return path.name
    for folder, before in ((Path.cwd(), ""), (Path.home(), "~/")):
        with suppress(ValueError):
            return before + shlex.quote(str(path.relative_to(folder)))
    return shlex.quote(str(path))


def unknown(
    what: str,
    word: str,
    known: Iterable[str],
    of: str = "",
    elsewhere: Mapping[str, str] | None = None,
) -> Unsupported:
    """The error for an unknown name: it suggests the nearest known one, or else lists all.

    ``of``: what has these names, as the beginning of the message. ``elsewhere``: names that other
    programs use, with the text to suggest for each.
    """
    names = list(known)
    near = (elsewhere or {}).get(word) or next(iter(_near(word, names)), "")
    rest = f"did you mean {near}?" if near else f"there are: {', '.join(names)}"
    whose = f"{of}: " if of else ""
    return Unsupported(f"{whose}no {what} {word[:_SHOWN]!r}; {rest}")


def _near(word: str, names: Sequence[str]) -> list[str]:
    """The names most similar to a word, apart from case and dashes; the nearest first."""
    plain = {re.sub(r"[-_ ]", "", name.lower()): name for name in reversed(names)}
    plain_word = re.sub(r"[-_ ]", "", word.lower())
    return [plain[near] for near in difflib.get_close_matches(plain_word, plain)]


def _meant(word: str, names: Sequence[str], dashes: str = "") -> str:
    """``; did you mean …?`` with options that the word begins, or with the nearest one.

    Options that a part of the word begins follow.
    """
    parts = tuple(part for part in re.split("[-_]", word.lower()) if len(part) > 2)
    whole = [name for name in names if len(word) > 2 and name.startswith(word.lower())]
    begun = [name for name in names if len(parts) > 1 and name.startswith(parts)]
    near = list(dict.fromkeys((*(whole or _near(word, names)[:1]), *begun)))[:3]
    return f"; did you mean {' or '.join(dashes + name for name in near)}?" if near else ""


def whole(low: int, what: str, most: int) -> Callable[[str], int]:
    """A converter from an option's text to a whole number from ``low`` to ``most``.

    ``what``: the noun of what is counted, for messages.
    """

    def convert(text: str) -> int:
        match = _DIGITS.fullmatch(text)
        if match is None:
            long = re.fullmatch(r"\s*\+?[0-9]+\s*", text, re.ASCII)
            span = re.fullmatch(r"([0-9]{1,4})-([0-9]{1,4})", text, re.ASCII)
            reason = f"at most {most} {what}" if long else "that is no whole number"
            if span and 0 < int(span[2]) - int(span[1]) < _SHORT:
                each = ",".join(map(str, range(int(span[1]), int(span[2]) + 1)))
                reason += f"; a list is {each}"
            raise argparse.ArgumentTypeError(f"{text[:_SHOWN]!r}: {reason}")
        value = int(match[1])
        if value < low:
            raise argparse.ArgumentTypeError(f"{value} {what}; at least {low} is needed")
        if value > most:
            raise argparse.ArgumentTypeError(f"{value} {what}; at most {most}")
        return value

    return convert


def number(low: float, most: float, what: str) -> Callable[[str], float]:
    """A converter from an option's text to a finite number from ``low`` to ``most``."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text[:_SHOWN]!r} is no number") from None
        if not low <= value <= most:
            end = f"at most {most:g}" if value > most else f"at least {low:g} is needed"
            raise argparse.ArgumentTypeError(f"{text[:_SHOWN]} {what}; {end}")
        return value

    return convert


def time_in(unit: str, low: float, most: float) -> Callable[[str], float]:
    """A converter from a time to a number of ``unit``: from ``30s``, ``10m``, or a number alone.

    ``unit``: a key of `TIMES`. ``low``, ``most``: see `number`.
    """

    def convert(text: str) -> float:
        value = parse_quantity(text, TIMES)
        if value is None:
            try:
                float(text)
            except ValueError:
                raise argparse.ArgumentTypeError(
                    f"{text[:_SHOWN]!r} is no time; write 30s, 10m, 2h, or a number of {noun}"
                ) from None
        return checked(text if value is None else f"{value / TIMES[unit]:.9g}")

    noun = "minutes" if unit == "m" else "seconds"
    checked = number(low, most, noun)
    return convert


class JoinLists(argparse.Action):
    """An option whose value is a list. If the option is repeated, the lists are joined."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, value: Any, flag: object = None
    ) -> None:
        """Append the value to the earlier one; texts are joined by a comma."""
        if self.dest in namespace:
            earlier = getattr(namespace, self.dest)
            value = f"{earlier},{value}" if isinstance(value, str) else earlier + value
        setattr(namespace, self.dest, value)


def _is_left_out(action: argparse.Action, names: set[str]) -> bool:
    """True for an option with one of these names, and for one that takes a file or a host."""
    private = str(action.metavar or "").startswith(("FILE", "HOST"))
    return private or not names.isdisjoint(action.option_strings)


class Parser(argparse.ArgumentParser):
    """A parser that raises Unsupported when argparse would print its usage and exit.

    It has ``--version``, accepts no abbreviations, prints only on the launcher's rank 0, and
    supports completion in a shell (`busbar.completion`). For the hints of its errors it may know
    the commands that the first word can name (``commands``), words that are no algorithms
    (``no_names``), what to suggest for an option that is called as a command is (``beside``), and
    what stands before the command line that this command runs, if it does (``before_command``).
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **more})
        self._negative_number_matcher = _NEGATIVE
        self.commands: Sequence[str] = ()
        self.beside: Mapping[str, str] = {}
        self.no_names: Sequence[str] = ()
        self.before_command = ""
        self._words: list[str] = []
        self._left: list[str] = []
        self._given: set[str] = set()
        self._spelled: list[tuple[argparse.Action, list[str]]] = []
        self._groups: dict[tuple[str, str], argparse._ActionsContainer] = {}
        text = "print the version and exit"
        self.add_argument("--version", action=_Version, nargs=0, help=text)

    def group(self, title: str = "", alternatives: str = "") -> argparse._ActionsContainer:
        """The group of options with this title; with ``alternatives`` one of exclusive options."""
        if not title and not alternatives:
            return self
        key = title, alternatives
        if key not in self._groups:
            self._groups[key] = (
                self.group(title).add_mutually_exclusive_group()
                if alternatives
                else self.add_argument_group(title)
            )
        return self._groups[key]

    def parse_mixed(self, argv: Sequence[str], into: str) -> argparse.Namespace:
        """As `parse_args`; words behind an option, which argparse leaves, join the words ``into``.

        Raises Unsupported for an option that is not known.
        """
        parsed: argparse.Namespace
        parsed, rest = self.parse_known_args(list(argv))
        if any(word.startswith("-") and word != "-" for word in rest):
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        setattr(parsed, into, [*getattr(parsed, into, ()), *rest])
        return parsed

    def words(
        self,
        values: Mapping[str, object],
        of: str = "",
        elsewhere: Mapping[str, str] | None = None,
    ) -> list[str]:
        """The command line that sets options to ``values``, given by the options' long names.

        A true value adds a switch; items of lists, ranges and arrays are joined by commas; None
        leaves the default. Raises Unsupported if no option has a name, or for a list without items;
        ``of``: the beginning of these messages; ``elsewhere``: see `unknown`.
        """
        known: dict[str, tuple[str, argparse.Action]] = {}
        for action in self._actions:
            for flag in action.option_strings:
                if flag.startswith("--") and action.dest not in ("help", "version"):
                    known[flag[2:].replace("-", "_")] = flag, action
        words: list[str] = []
        for name, value in values.items():
            if name not in known:
                shown = [one for one in known if known[one][1].help != argparse.SUPPRESS]
                near = (elsewhere or {}).get(name)
                meant = f"; did you mean {near}?" if near else _meant(name, shown) or ";"
                whose = f"{of}: " if of else ""
                every = (
                    f"help({of}) and docs/options.md list" if of else f"{self.prog} --help lists"
                )
                raise Unsupported(f"{whose}no option {name[:_SHOWN]!r}{meant} {every} all")
            flag, action = known[name]
            if value is None:
                continue
            text = _text(value)
            if not text and not isinstance(value, str):
                raise Unsupported(f"{of or flag}: {name} has no items")
            if action.nargs == 0:
                if value not in (True, False):
                    raise Unsupported(f"{of or flag}: {name} is True or False, not {value!r}")
                words += [flag] if value else []
            elif isinstance(action, argparse._AppendAction) or action.nargs == "+":
                texts = map(str, each(value))
                if action.nargs == "+":
                    words += [flag, *texts]
                else:
                    words += [f"{flag}={one}" for one in texts]
            else:
                words.append(f"{flag}={text}")
        return words

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; keeps words that no option takes for the error message.

        Hyphens and underscores in the long name of an option are the same.
        """
        words = list(sys.argv[1:] if args is None else args)
        self._spelled.clear()
        completing(self, words)
        end = words.index("--") if "--" in words else len(words)
        own = [self._as_known(word) for word in words[:end]]
        self._words = [*own, *words[end:]]
        for word in own:
            name = word.partition("=")[0]
            meant = self._option_string_actions.get(f"-{name}")
            if _SINGLE_DASH.fullmatch(name) and meant and meant.help != argparse.SUPPRESS:
                raise Unsupported(f"{word}: did you mean -{word}?")
        parsed, self._left = super().parse_known_args(self._words, namespace)
        self._given = {*vars(parsed)}
        return parsed, self._left

    def _as_known(self, word: str) -> str:
        """The known spelling of a long option whose hyphens and underscores are others."""
        name, equals, value = word.partition("=")
        if name.startswith("--") and name not in self._option_string_actions:
            for mark in "_-":
                other = "--" + re.sub("[-_]", mark, name[2:])
                if other in self._option_string_actions:
                    return f"{other}{equals}{value}"
        return word

    def spelled(self, without: Iterable[str]) -> list[str]:
        """The options that were parsed last and are listed in ``--help``, with their values.

        ``without``: long names to leave out; options that take a file or a host are left out, too.
        """
        names = {*without}
        return self._chosen(lambda action: not _is_left_out(action, names))

    def left_out(self, without: Iterable[str], dropped: Iterable[str]) -> list[str]:
        """The options that `spelled` leaves out, but for those with a long name in ``dropped``."""
        names, others = {*without}, {*dropped}
        return self._chosen(
            lambda action: _is_left_out(action, names) and others.isdisjoint(action.option_strings)
        )

    def _chosen(self, is_wanted: Callable[[argparse.Action], bool]) -> list[str]:
        return [
            word
            for action, values in self._spelled
            if action.help != argparse.SUPPRESS and is_wanted(action)
            for word in (action.option_strings[0], *values)
        ]

    def _get_values(self, action: argparse.Action, arg_strings: Any) -> Any:
        """Convert as argparse does; keeps what was written for `spelled`."""
        if action.option_strings:
            self._spelled.append((action, list(arg_strings)))
        return super()._get_values(action, arg_strings)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Convert as argparse does; the message of a `BusbarError` then names the option.

        A choice is known in upper case, too. The error for a word in place of a number says what
        the option is.
        """
        try:
            value = super()._get_value(action, arg_string)
            lower = value.lower() if isinstance(value, str) else value
            return lower if lower in (action.choices or ()) else value
        except argparse.ArgumentError:
            if action.type not in (int, float):
                raise
            noun = "number" if action.type is float else "whole number"
            about = (action.help or "").partition(" (default")[0]
            text = f"{arg_string[:_SHOWN]!r} is no {noun}: {about}"
            text += self._other_case(action, arg_string)
            raise argparse.ArgumentError(action, text) from None
        except BusbarError as error:
            named = argparse.ArgumentError(action, str(error))
            if isinstance(error, MissingFile):
                raise MissingFile(str(named), error.filename) from None
            raise named from None

    def _other_case(self, action: argparse.Action, word: str) -> str:
        """``; did you mean -A ring?`` for ``-a ring`` if -A is an option for names; else empty."""
        flags = [flag.swapcase() for flag in action.option_strings]
        names = [f for f in flags if isinstance(self._option_string_actions.get(f), JoinLists)]
        return f"; did you mean {names[0]} {word[:_SHOWN]}?" if names else ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check as argparse does; the error ends with the most similar choice."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            choices = [str(choice) for choice in action.choices or ()]
            begun = [one for one in choices if str(value).lower().startswith(one)]
            several = "," in str(value) and {*str(value).split(",")} <= {*choices}
            every = [one for one in choices if several and one in ("both", "all")]
            near = every or _near(str(value), choices) or begun
            meant = f"; did you mean {near[0]}?" if near else ""
            raise argparse.ArgumentError(action, f"{error.message}{meant}") from None

    def error(self, message: str) -> NoReturn:
        """Raise Unsupported, with the most similar option and a hint at ``--help``."""
        wrong = next((word for word in self._left if word.startswith("--")), "")
        known = [
            flag[2:]
            for flag, action in self._option_string_actions.items()
            if flag.startswith("--") and action.help != argparse.SUPPRESS
        ]
        word = wrong[2:].partition("=")[0]
        other = self.beside.get(word) or self._chosen_by(word)
        meant = f"; did you mean {other}?" if other else _meant(word, known, "--") if word else ""
        command = next((word for word in self._left if word in self.commands), "")
        if command:
            rest = [word for word in self._left if word != command]
            meant = f"; options follow the command: {self.prog} {shlex.join([command, *rest])}"
        elif not meant and (word in ("out", "output") or self._left[:1] == ["-o"]):
            meant = "; the result is standard output: > FILE keeps it"
        elif self._left and (near := _near(self._left[0], self.commands)):
            meant = f"; did you mean {self.prog} {near[0]}?"
        elif self.before_command and self._left and not self._left[0].startswith("-"):
            first = self._left[0]
            before = self.before_command.removesuffix(f"{first} ")
            meant = f"; a command follows after --, as in: {before}{first}"
        elif self._left and not wrong and (option := self._option_meant(known)):
            meant = f"; did you mean {option}?"
        # A program would see argparse's own exceptions above this one.
        raise Unsupported(f"{message}{meant}; see {self.prog} --help") from None

    def _chosen_by(self, word: str) -> str:
        """``--format csv`` for ``--csv`` where the command has that, ``--version`` for ``-V``."""
        form = self._option_string_actions.get("--format")
        if form is not None and word in (form.choices or ()):
            return f"--format {word}"
        return "--version" if self._left[:1] == ["-V"] else ""

    def _option_meant(self, known: Sequence[str]) -> str:
        """The option to suggest for words that belong to none; empty if there is no guess."""
        left = self._left
        sweep = ""
        if "maxbytes" in known and all(map(_SIZE.fullmatch, left)):
            low = [] if "minbytes" in self._given else ["-b", left[0]]
            high = [] if low and "maxbytes" in self._given else ["-e", left[-1]]
            sweep = " ".join(low + high)
        at = self._words.index(left[0]) if left[0] in self._words else 0
        flag, value = self._words[at - 2 : at] if at > 1 else ("", "")
        action = self._option_string_actions.get(flag)
        if apart := self._sizes_apart():
            return apart
        listed = isinstance(action, JoinLists) or (action and "," in (action.metavar or ""))
        words = any(word.startswith("-") for word in left) or (sweep and not _SIZE.fullmatch(value))
        numbers = [one[:1].isdigit() for one in (value, *left)]  # of one kind, as ranks are
        if listed and not words and len({*numbers}) == 1:
            value = value.strip(",")
            between = f", or -b {value} -e {left[-1]} for the sizes between" if sweep else ""
            return f"{flag} {','.join([value, *left])}{between}"
        names = not {"help", *self.no_names} & {*left} and all(map(str.isidentifier, left))
        if names and not sweep and "algorithm" in known:
            return f"-A {','.join(left)}"
        if names and len(left) == 1 and "model" in known:
            return f"--model {left[0]}"
        return sweep

    def _sizes_apart(self) -> str:
        """``-b 64K`` for ``-b 64 K``, of all words that belong to no option; else empty."""
        whole = list[str]()
        for flag, number, unit in zip(self._words, self._words[1:], self._words[2:], strict=False):
            action = self._option_string_actions.get(flag)
            takes = action is not None and "SIZE" in (action.metavar or "")
            if takes and unit in self._left and _SIZE.fullmatch(number + unit):
                whole.append(f"{flag} {number}{unit}")
        return " ".join(whole) if len(whole) == len(self._left) else ""

    def _print_message(self, message: str, file: Any = None) -> None:
        if speaks():
            # argparse's own keeps silent where it cannot write.
            (file or sys.stderr).write(message)


def _text(value: object) -> str:
    """An option's value as the text of a command line."""
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(map(str, each(value)))


def each(value: object) -> Iterable[Any]:
    """The items of a list, range or array; a text, a path or another value is the only item."""
    return value if isinstance(value, Iterable) and not isinstance(value, str) else [value]


class _Version(argparse.Action):
    """``--version``, with the revision if this is a git checkout."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the version to standard output and exit."""
        commit = revision()
        known = f" ({commit[:12]})" if commit else ""
        parser._print_message(f"busbar {busbar_version()}{known}\n", sys.stdout)
        parser.exit()
