"""Command lines whose complaints are our errors, of one line, and their numbers, which are bounded.

What they mean is the callers' matter.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import NoReturn

from busbar.errors import Unsupported

__all__ = ["Parser", "number", "whole"]

# As long as any bound of a whole number; int() itself refuses thousands of digits, by another error.
_DIGITS = re.compile(r"\s*([+-]?[0-9]{1,18})\s*", re.ASCII)
_SHOWN = 40


def whole(low: int, what: str, most: int) -> Callable[[str], int]:
    """What turns an option's text into a whole number from ``low`` to ``most``; ``what`` are counted."""

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
    """A parser that raises Unsupported where argparse would print its usage and leave."""

    def error(self, message: str) -> NoReturn:
        """Raise Unsupported, with where to find help."""
        raise Unsupported(f"{message}; see {self.prog} --help")
