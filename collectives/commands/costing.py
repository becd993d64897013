"""``cost``: what schedules cost, beside the lower bounds."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from collectives.bounds import bound
from collectives.catalogue import draft, spec
from collectives.commands.command import (
    Command,
    asked,
    new_table,
    one,
    pairs,
    schedule_options,
    show,
)
from collectives.cost import cost
from collectives.errors import Unsupported

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["COMMAND"]


def _options(parser: argparse.ArgumentParser) -> None:
    schedule_options(parser, every=True, ranks="8", ranks_help="rank count (default 8)")


def _cost(options: argparse.Namespace) -> int:
    name, given = asked(options)
    nranks = one(options.ranks)
    tables: dict[str, Table] = {}
    for collective, each in pairs(options, name):
        if collective not in tables:
            tables[collective] = _costs(collective, nranks)
        try:
            schedule = draft(collective, each, nranks, root=options.root, **given)
        except Unsupported as error:
            if name != "all":
                raise
            tables[collective].add_row(each, "-", *[""] * 5)
            print(f"collectives: {collective}: {error}", file=sys.stderr)
            continue
        found = cost(schedule, spec(collective))
        volumes = (found.total, found.out, found.into, found.reduced)
        row = (str(found.steps), str(found.rounds), *map(_number, volumes))
        tables[collective].add_row(each, *row)
    show(
        *tables.values(),
        "Volumes are in units of the collective's own total n. rounds: messages in a row when a",
        "port carries one at a time each way; out, in, reductions: the busiest rank's.",
        "Lower bounds: Chan et al. 2007, for such ports.",
    )
    return 0


def _costs(collective: str, nranks: int) -> Table:
    """An empty table of costs, with the lower bounds where there are."""
    columns = ("steps", "rounds", "total", "out", "in", "reductions")
    table = new_table(f"{collective} on {nranks} ranks", "algorithm", *columns)
    least = bound(collective, nranks)
    if least is not None:
        volumes = ("-" if v is None else _number(v) for v in (least.out, least.into, least.reduced))
        table.add_row("lower bound", "", str(least.rounds), "", *volumes, end_section=True)
    return table


def _number(value: float) -> str:
    return f"{value:.4g}"


COMMAND = Command("steps, bytes and additions beside the lower bounds", _options, _cost)
