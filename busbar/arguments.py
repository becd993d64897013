"""Command-line parsers that raise one-line errors of our own, and bounded numbers for options.

The meaning of the options is up to the caller.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from busbar.completion import completing
from busbar.errors import BusbarError, Unsupported
from busbar.installation import busbar_version, revision
from busbar.launchers import speaks

# As long as any bound of a whole number; int() itself refuses thousands of digits, by another
# error.
_DIGITS = re.compile(r"\s*([+-]?[0-9]{1,18})\s*", re.ASCII)
_SHOWN = 40
_SIZE = re.compile("[0-9]+[KMGT]i?B?", re.IGNORECASE)


def program(module: str) -> str:
    """How this process was started: ``busbar allreduce``, or ``python -m bench.allreduce``."""
    ours = Path(sys.argv[0]).name == "busbar" or Path(sys.argv[0]).parent.name == "busbar"
    return f"busbar {module.removeprefix('bench.')}" if ours else f"python -m {module}"


def unknown(
    what: str,
    word: str,
    known: Iterable[str],
    of: str = "",
    elsewhere: Mapping[str, str] | None = None,
) -> Unsupported:
    """The error for an unknown name, which suggests the nearest known one.

    ``of``: whose names they are, if that is not obvious. ``elsewhere``: what other programs call
    a known one.
    """
    names = list(known)
    near = (elsewhere or {}).get(word) or next(iter(_near(word, names)), "")
    meant = f"did you mean {near}? " if near else ""
    whose = f"{of}: " if of else ""
    return Unsupported(f"{whose}no {what} {word[:_SHOWN]!r}; {meant}there are: {', '.join(names)}")


def _near(word: str, names: Sequence[str]) -> list[str]:
    """The names most like a word, the nearest first, whatever its case and its dashes."""
    plain = {re.sub(r"[-_ ]", "", name.lower()): name for name in reversed(names)}
    plain_word = re.sub(r"[-_ ]", "", word.lower())
    return [plain[near] for near in difflib.get_close_matches(plain_word, plain)]


def _meant(word: str, names: Sequence[str], dashes: str = "") -> str:
    """``; did you mean …?`` with the nearest option and those that a part of the word begins."""
    parts = tuple(part for part in re.split("[-_]", word.lower()) if len(part) > 2)
    begun = [name for name in names if len(parts) > 1 and name.startswith(parts)]
    near = list(dict.fromkeys((*_near(word, names)[:1], *begun)))[:3]
    return f"; did you mean {' or '.join(dashes + name for name in near)}?" if near else ""


def whole(low: int, what: str, most: int) -> Callable[[str], int]:
    """A converter from an option's text to a whole number from ``low`` to ``most``.

    ``what``: the noun of what is counted, for messages.
    """

    def convert(text: str) -> int:
        match = _DIGITS.fullmatch(text)
        if match is None:
            long = re.fullmatch(r"\s*\+?[0-9]+\s*", text, re.ASCII)
            reason = f"at most {most} {what}" if long else "that is no whole number"
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


class Parser(argparse.ArgumentParser):
    """A parser that raises Unsupported where argparse would print its usage and exit.

    It has ``--version``, accepts no abbreviations, prints on the launcher's rank 0 only, and
    answers a shell's completion (`busbar.completion`).
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **more})
        self._left: list[str] = []
        self._groups: dict[tuple[str, str], argparse._ActionsContainer] = {}
        text = "print the version and exit"
        self.add_argument("--version", action=_Version, nargs=0, help=text)

    def group(self, title: str = "", alternatives: str = "") -> argparse._ActionsContainer:
        """The group of options of this title, or of its alternatives, of which one may be given."""
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

    def words(self, values: Mapping[str, object], of: str = "") -> list[str]:
        """The command line that gives options these values, by their long names.

        A switch is there or not; a list is joined by commas. Raises Unsupported for a name that no
        option has; ``of``: the beginning of that message.
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
                meant = _meant(name, shown) or ";"
                whose = f"{of}: " if of else ""
                raise Unsupported(
                    f"{whose}no option {name[:_SHOWN]!r}{meant} {self.prog} --help lists all"
                )
            flag, action = known[name]
            if action.nargs == 0:
                words += [flag] if value else []
            else:
                words.append(f"{flag}={_text(value)}")
        return words

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's; words that are left over are kept for the error message."""
        completing(self, sys.argv[1:] if args is None else args)
        parsed, self._left = super().parse_known_args(args, namespace)
        return parsed, self._left

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """As argparse's; a converter may raise an error of ours, which then names its option."""
        try:
            return super()._get_value(action, arg_string)
        except BusbarError as error:
            raise argparse.ArgumentError(action, str(error)) from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse's; the error ends with the choice that may be meant."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = _near(str(value), [str(choice) for choice in action.choices or ()])
            meant = f"; did you mean {near[0]}?" if near else ""
            raise argparse.ArgumentError(action, f"{error.message}{meant}") from None

    def error(self, message: str) -> NoReturn:
        """Raise Unsupported, with the option that may be meant and where to find help."""
        wrong = next((word for word in self._left if word.startswith("--")), "")
        known = [flag[2:] for flag in self._option_string_actions if flag.startswith("--")]
        meant = _meant(wrong[2:].partition("=")[0], known, "--") if wrong else ""
        sizes = [word for word in self._left if _SIZE.fullmatch(word)]
        if sizes and not wrong and "maxbytes" in known:
            meant = f"; did you mean -e {sizes[0]}?"
        raise Unsupported(f"{message}{meant}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        if speaks():
            # argparse's own keeps silent where it cannot write.
            (file or sys.stderr).write(message)


def _text(value: object) -> str:
    """An option's value as a command line has it."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


class _Version(argparse.Action):
    """``--version``, with the revision if this is a git checkout."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print it to standard output and exit."""
        commit = revision()
        known = f" ({commit[:12]})" if commit else ""
        parser._print_message(f"busbar {busbar_version()}{known}\n", sys.stdout)
        parser.exit()
