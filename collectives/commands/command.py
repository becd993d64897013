"""What a command is, and what several of them share: options, names, rank counts, tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from collectives.catalogue import (
    algorithm,
    algorithms,
    collectives,
    from_file,
    parse,
    spec,
)
from collectives.errors import Unsupported
from collectives.msccl import cli as files

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Command", "asked", "new_table", "one", "pairs", "ranks", "schedule_options", "show"]

_MOST_RANKS = 1024


class Command(NamedTuple):
    """A line of help, what adds the options to a parser, and what runs and gives the exit status."""

    text: str
    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def schedule_options(
    parser: argparse.ArgumentParser, *, every: bool, ranks: str, ranks_help: str
) -> None:
    """The options that say which schedule is meant; ``every``: NAME may be all."""
    option = parser.add_argument
    text = (
        "an algorithm, with parameters as in chain:segments=4; or a composition like"
        " halving+ring; or an MSCCL FILE.xml"
    )
    option("name", metavar="NAME", help=text + ("; or all" if every else ""))
    option("-c", "--collective", help="which collective")
    option("-n", "--ranks", default=ranks, help=ranks_help)
    option("-r", "--root", type=int, default=0, help="the root's rank")
    for key, text in (("grid", "a torus, like 4x4"), ("segments", "pipeline segments")):
        option(f"--{key}", help=text)


def ranks(text: str, most: int = _MOST_RANKS) -> list[int]:
    """The rank counts of ``2-8,16``. Raises Unsupported for what is none, or above ``most``."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise Unsupported(f"-n {text}: {part!r} is no rank count; write 8, or 2-8,16")
        if int(high if dash else low) > most:
            raise Unsupported(f"-n {text}: rank counts go from 1 to {most}")
        found += range(int(low), int(high if dash else low) + 1)
    if not found or min(found) < 1:
        raise Unsupported(f"-n {text}: rank counts go from 1 to {most}")
    return found


def one(text: str, most: int = _MOST_RANKS) -> int:
    """The one rank count of a text. Raises Unsupported."""
    found = ranks(text, most)
    if len(found) != 1:
        raise Unsupported(f"-n {text}: one rank count is needed")
    return found[0]


def asked(options: argparse.Namespace) -> tuple[str, dict[str, object]]:
    """The algorithm's name and parameters, from NAME and the options for parameters."""
    if from_file(options.name):
        files.describe(options)
    extra = [
        f"{key}={getattr(options, key)}" for key in ("grid", "segments") if getattr(options, key)
    ]
    name, given = parse(":".join([options.name, *extra]))
    root = given.pop("root", None)
    if root is not None:
        if not isinstance(root, int):
            raise Unsupported(f"root must be a rank, not {root!r}")
        options.root = root
    return name, given


def pairs(options: argparse.Namespace, name: str) -> Iterator[tuple[str, str]]:
    """(collective, algorithm) of everything that was asked for."""
    wanted = collectives() if options.collective is None else [spec(options.collective).name]
    found = [
        (collective, each)
        for collective in wanted
        for each in (algorithms(collective) if name == "all" else [name])
        if "+" in each or from_file(each) or each in algorithms(collective)
    ]
    if not found:
        for collective in wanted[:1] if options.collective else []:
            algorithm(collective, name)  # raises, with the list of names
        raise Unsupported(
            f"no algorithm {name!r} in any collective; see python -m collectives list"
        )
    if "+" in name and options.collective is None:
        raise Unsupported(f"{name}: a composition needs --collective")
    yield from found


def show(*things: object) -> None:
    """Print tables and lines to standard output."""
    from rich.console import Console

    # A pipe gets lines as long as they are; only a terminal has an edge to fold at.
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    for thing in things:
        console.print(thing)


def new_table(title: str, *columns: str, text: int = 1) -> Table:
    """A table whose first ``text`` columns are words, the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < text else "right", overflow="fold")
    return table
