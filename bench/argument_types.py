"""What turns the text of an option into its value, or says what was meant."""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["at_least", "check", "gpus", "patience", "ranks", "root", "seconds", "split"]

SPLITS = ("mod", "div", "and", "or")


def at_least(low: int, what: str) -> Callable[[str], int]:
    """What turns an option's text into a whole number of at least ``low``; ``what`` are counted."""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if number < low:
            raise argparse.ArgumentTypeError(f"{number} {what}; at least {low} is needed")
        return number

    return convert


def ranks(low: int) -> Callable[[str], tuple[int, ...]]:
    """What turns ``2,4,8`` into rank counts of at least ``low``, rising, each of them once."""
    one = at_least(low, "ranks")
    return lambda text: tuple(sorted({one(part) for part in text.split(",")}))


def patience(text: str) -> float | None:
    """Seconds, or None for 0: nccl-tests' way to say that there is no limit."""
    return None if text == "0" else seconds(text)


def check(text: str) -> bool:
    """0 or 1; nccl-tests also counts, which has no meaning where a row is checked once."""
    if text not in ("0", "1"):
        raise argparse.ArgumentTypeError(
            f"{text}: write 0 or 1; a row is checked once, every element on every rank"
        )
    return text == "1"


def seconds(text: str) -> float:
    """A finite time above 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} seconds; more than 0 is needed")
    return value


def gpus(text: str) -> tuple[int, ...] | None:
    """Numbers, or None for those that the profiler picks."""
    if text == "pick":
        return None
    parts = text.split(",")
    if not all(part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(
            f"{text!r}: write numbers joined by commas, such as 0,3,5, or pick"
        )
    return tuple(map(int, parts))


def split(text: str) -> tuple[str, int]:
    """A rule and its number, decimal or hexadecimal, as in ``and:0x7``."""
    rule, _, number = text.lower().partition(":")
    try:
        value = int(number, 0)
    except ValueError:
        value = 0
    if rule not in SPLITS or value < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write one of mod:N, div:N, and:MASK, or:MASK, such as and:0x7"
        )
    return rule, value


def root(text: str) -> int | None:
    """A rank, or None for all."""
    return None if text == "all" else at_least(0, "as root")(text)
