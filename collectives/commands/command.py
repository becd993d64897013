"""What a command is, and what several of them share: options, names, rank counts, tables."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from busbar.errors import Unsupported
from busbar.terminal import open_console
from busbar.units import MOST_RANKS, Unsaid, parse_ranks
from collectives.formats.load import from_file
from collectives.schedule.catalogue import algorithm, algorithms, collectives, spec

if TYPE_CHECKING:
    pass


class Subcommand(NamedTuple):
    """A line of help, what adds options to a parser, and what runs and gives the exit status."""

    text: str
    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def schedule_options(
    parser: argparse.ArgumentParser,
    *,
    every: bool,
    ranks: str,
    ranks_help: str,
    optional: bool = False,
) -> None:
    """The options that say which schedule is meant.

    ``every``: NAME may be all; ``optional``: that is what a NAME left out means.
    """
    option = parser.add_argument
    text = (
        "an algorithm, with parameters as in chain:segments=4; or a composition like"
        " halving+ring; or a file of MSCCL or MSCCL++"
    )
    if every:
        text += "; or several with commas between, or all"
    option("name", metavar="NAME", nargs="?" if optional else None, default="all", help=text)
    option("-c", "--collective", help="which collective")
    option("-n", "--ranks", default=Unsaid(ranks), help=ranks_help)
    option("-r", "--root", type=int, default=0, help="root rank (default 0)")
    for key, text in (("grid", "a torus, like 4x4"), ("segments", "pipeline segments")):
        option(f"--{key}", help=text)


def one(text: str, most: int = MOST_RANKS) -> int:
    """The one rank count of a text. Raises Unsupported."""
    found = parse_ranks(text, most)
    if len(found) != 1:
        raise Unsupported(f"-n {text}: one rank count is needed")
    return found[0]


def pairs(options: argparse.Namespace, name: str) -> Iterator[tuple[str, str]]:
    """(collective, algorithm) of all that was asked for: all, or names with commas between."""
    wanted = collectives() if options.collective is None else [spec(options.collective).name]
    names = [name] if from_file(name) else name.split(",")
    found = [
        (collective, each)
        for collective in wanted
        for each in (algorithms(collective) if name == "all" else names)
        if "+" in each or from_file(each) or each in algorithms(collective)
    ]
    known = {each for _, each in found}
    for lost in [] if name == "all" else [each for each in names if each not in known]:
        if options.collective:
            algorithm(wanted[0], lost)  # raises, with the list of names
        raise Unsupported(
            f"no algorithm {lost!r} in any collective; see python -m collectives list"
        )
    if "+" in name and options.collective is None:
        raise Unsupported(f"{name}: a composition needs --collective")
    yield from found


def width() -> int:
    """Columns to fill: the terminal's, or COLUMNS.

    A pipe, which has no edge to fold at, gets 160.
    """
    from rich.console import Console

    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console().width if known else 160


def show(*things: object) -> None:
    """Print tables and lines to standard output."""
    console = open_console(width=width(), highlight=False, markup=False)
    for thing in things:
        console.print(thing)
