"""``show``: a schedule step by step, as a table or a drawing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from collectives.catalogue import build, draft
from collectives.commands.command import (
    Command,
    asked,
    new_table,
    one,
    schedule_options,
    show,
)
from collectives.errors import Unsupported
from collectives.schedule import Schedule

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["COMMAND"]

# More ranks than this make no readable columns; their moves are listed.
_WIDEST = 8


def _options(parser: argparse.ArgumentParser) -> None:
    schedule_options(parser, every=False, ranks="8", ranks_help="rank count (default 8)")
    parser.add_argument("--placed", action="store_true", help="slots of in, out, scratch")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw it (.svg, .png or .pdf)")


def _show(options: argparse.Namespace) -> int:
    from collectives.draw import cells, picture
    from collectives.figures import checked

    if options.svg is not None:
        checked(options.svg)
    name, given = asked(options)
    if options.collective is None:
        raise Unsupported(f"show {name}: give its --collective")
    make = build if options.placed else draft
    nranks = one(options.ranks)
    schedule = make(options.collective, name, nranks, root=options.root, **given)
    chunks = "1 chunk" if schedule.nchunks == 1 else f"{schedule.nchunks} chunks"
    title = f"{options.collective} {options.name} on {nranks} ranks, {chunks}"
    table = new_table(title, "step", *(f"rank {rank}" for rank in range(nranks)), text=1 + nranks)
    for number, step in enumerate(schedule.all_moves):
        sent = cells(step, nranks, schedule.vector)
        table.add_row(str(number), *("\n".join(lines) for lines in sent))
    legend = "→2 5: sends chunk 5 to rank 2, which keeps it instead of its own; +5: which adds it"
    if nranks <= _WIDEST:
        show(table, legend)
    else:
        show(_listing(schedule, title), legend)
    if options.svg is not None:
        picture(schedule, title, options.svg)
        print(f"drawn to {options.svg}", file=sys.stderr)
    return 0


def _listing(schedule: Schedule, title: str) -> Table:
    from collectives.draw import cells

    table = new_table(title, "step", "moves", text=2)
    for number, step in enumerate(schedule.all_moves):
        sent = cells(step, schedule.nranks, schedule.vector)
        lines = [f"{rank}{each}" for rank, some in enumerate(sent) for each in some]
        table.add_row(str(number), "   ".join(lines))
    return table


COMMAND = Command("a schedule step by step", _options, _show)
