"""Command lines whose complaints are our errors, of one line, and their numbers, which are bounded.

What they mean is the callers' matter.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from busbar.errors import Unsupported
from busbar.installation import busbar_version
from busbar.launchers import speaks

__all__ = ["Parser", "number", "program", "unknown", "whole"]

# As long as any bound of a whole number; int() itself refuses thousands of digits, by another
# error.
_DIGITS = re.compile(r"\s*([+-]?[0-9]{1,18})\s*", re.ASCII)
_SHOWN = 40


def program(module: str) -> str:
    """How this process was started: ``busbar allreduce``, or ``python -m bench.allreduce``."""
    ours = Path(sys.argv[0]).name == "busbar" or Path(sys.argv[0]).parent.name == "busbar"
    return f"busbar {module.removeprefix('bench.')}" if ours else f"python -m {module}"


def unknown(what: str, word: str, known: Iterable[str]) -> Unsupported:
    """The error for a name that is none of those that there are, with the one that may be meant."""
    names = list(known)
    near = difflib.get_close_matches(word, names, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    return Unsupported(f"no {what} {word[:_SHOWN]!r}; {meant}there are: {', '.join(names)}")


def whole(low: int, what: str, most: int) -> Callable[[str], int]:
    """What turns an option's text into a whole number from ``low`` to ``most``.

    ``what`` are counted.
    """

    def convert(text: str) -> int:
        found = _DIGITS.fullmatch(text)
        if found is None:
            long = re.fullmatch(r"\s*\+?[0-9]+\s*", text, re.ASCII)
            said = f"at most {most} {what}" if long else "that is no whole number"
            raise argparse.ArgumentTypeError(f"{text[:_SHOWN]!r}: {said}")
        value = int(found[1])
        if value < low:
            raise argparse.ArgumentTypeError(f"{value} {what}; at least {low} is needed")
        if value > most:
            raise argparse.ArgumentTypeError(f"{value} {what}; at most {most}")
        return value

    return convert


def number(low: float, most: float, what: str) -> Callable[[str], float]:
    """What turns an option's text into a number from ``low`` to ``most``, both finite."""

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
    """A parser that raises Unsupported where argparse would print its usage and leave.

    It has ``--version``, takes no abbreviations, and prints on the launcher's rank 0 alone.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **more})
        version = f"busbar {busbar_version()}"
        text = "show the version and leave"
        self.add_argument("--version", action="version", version=version, help=text)

    def error(self, message: str) -> NoReturn:
        """Raise Unsupported, with where to find help."""
        raise Unsupported(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        if speaks():
            # argparse's own keeps silent where it cannot write.
            (file or sys.stderr).write(message)
