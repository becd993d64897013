"""Converters from an option's text to its value; errors say what is expected."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from busbar.arguments import number, time_in, unknown, whole
from busbar.errors import Unsupported
from busbar.units import MOST_RANKS

#: Most iterations: their times take 80 MB on each rank.
MOST = 10_000_000
#: Most iterations to check after the timed ones.
MOST_CHECKED = 1_000_000
# Four months. Longer times overflow in some libraries' wait functions.
_MOST_SECONDS = 10_000_000.0
SPLITS = ("mod", "div", "and", "or")


def at_least(low: int, what: str, most: int = MOST) -> Callable[[str], int]:
    """A converter from an option's text to a whole number of at least ``low`` of ``what``."""
    return whole(low, what, most)


def ranks(low: int) -> Callable[[str], tuple[int, ...]]:
    """A converter from ``2,4,8`` to sorted rank counts of at least ``low``, without repetitions."""
    one = at_least(low, "ranks", MOST_RANKS)
    return lambda text: tuple(sorted({one(part) for part in text.split(",")}))


def names(text: str, known: Sequence[str], what: str, more: Sequence[str] = ()) -> tuple[str, ...]:
    """Names from a list. ``all`` means all ``known`` ones; those in ``more`` must be named.

    A name is known in upper case, too. Raises Unsupported for any other name, and for ``all``
    beside other names.
    """
    text = plain_case(text)
    if text == "all":
        return tuple(known)
    every = split_names(text)
    for name in every:
        if name not in (*known, *more):
            raise unknown(what, name, (*known, *more, "all"))
    return every


def plain_case(text: str) -> str:
    """A list of names in the lower case that all names have; what may be a file is unchanged."""
    parts = text.split(",")
    return ",".join(part if re.search(r"[/\\.]", part) else part.lower() for part in parts)


def factor(text: str) -> float:
    """The factor between sizes."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is no number: -f is the factor between sizes (OSU's -f full is -I)"
        ) from None


def split_names(text: str) -> tuple[str, ...]:
    """Names joined by commas, each once. Raises Unsupported if one of several is ``all``."""
    every = tuple(text.split(","))
    if "all" in every and len(every) > 1:
        raise Unsupported(f"{text[:80]}: all stands alone; leave out the other names, or all")
    return tuple(dict.fromkeys(every))


def hosts(text: str) -> tuple[str, ...]:
    """Host names from a list joined by commas."""
    hosts_named = tuple(name.strip() for name in text.split(","))
    for name in hosts_named:
        if not re.fullmatch(r"[\w.][\w.-]*", name):
            raise argparse.ArgumentTypeError(f"{name[:40]!r} is no host name")
    return hosts_named


def patience(text: str) -> float | None:
    """Seconds, or None for 0 in any form, which means no limit as in nccl-tests."""
    return time_in("s", 0, _MOST_SECONDS)(text) or None


class Checks(NamedTuple):
    """Which results of a row are checked.

    ``iterations``: number of additional iterations after the timed ones, as nccl-tests' ``-c``.
    ``timed``: True to check every timed iteration too.
    """

    iterations: int = 1
    timed: bool = False

    def __str__(self) -> str:
        """The option's value as on the command line."""
        return "timed" if self.timed else str(self.iterations)


def check(text: str) -> Checks:
    """A count of iterations to check, as in nccl-tests, or ``timed``."""
    if text == "timed":
        return Checks(timed=True)
    try:
        return Checks(at_least(0, "checked iterations", MOST_CHECKED)(text))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; or timed, for every timed iteration") from None


def seconds(text: str) -> float:
    """A time in seconds, above 0 and at most about four months; see `busbar.arguments.time_in`."""
    value = time_in("s", 0, _MOST_SECONDS)(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text} seconds; more than 0 is needed")
    return value


def shares(text: str) -> tuple[float, ...]:
    """Fractions such as 0.05, each at most 10, from a list joined by commas."""
    return tuple(number(0, 10, "as a share")(part) for part in text.split(","))


def gpus(text: str) -> tuple[int, ...] | None:
    """GPU indices from ``0,3,5``; None for ``pick``, which lets ``topology pick`` choose."""
    if text == "pick":
        return None
    parts = text.split(",")
    try:
        return tuple(map(whole(0, "as a GPU", MOST), parts))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write numbers joined by commas, such as 0,3,5, or pick"
        ) from None


def grid(text: str) -> tuple[int, ...]:
    """The sides of a grid, as in ``4x4``."""
    try:
        sides = tuple(map(whole(1, "ranks", MOST), text.split("x")))
    except argparse.ArgumentTypeError:
        sides = ()
    if len(sides) < 2:
        raise argparse.ArgumentTypeError(f"{text[:80]}: write a grid such as 4x4")
    return sides


def split(text: str) -> tuple[str, int]:
    """How ``--split`` divides ranks into groups: a rule (mod, div, and, or) and its number.

    The number is decimal or hexadecimal, as in ``and:0x7``.
    """
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
