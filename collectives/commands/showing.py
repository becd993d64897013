"""``show``: a schedule step by step, as a table or a drawing."""

from __future__ import annotations

import sys
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.commands import Command
from busbar.errors import Unsupported
from busbar.options import option, switch
from busbar.tables import new_table
from collectives.commands.command import ScheduleOptions, one, show, width
from collectives.formats.load import build, draft
from collectives.schedule.catalogue import algorithm, algorithms
from collectives.schedule.schedule import Schedule

if TYPE_CHECKING:
    from rich.table import Table

# More ranks than this make no readable columns; their moves are listed.
_WIDEST = 8


class ShowCommand(ScheduleOptions, Command):
    """A schedule step by step."""

    placed: bool = switch("--placed  show where each chunk lies in the buffers in, out and scratch")
    svg: Path | None = option("--svg FILE  draw it (.svg, .png or .pdf)")

    def run(self) -> int:
        """Print the steps, or draw them."""
        from busbar.files import check_figure as checked
        from collectives.schedule.draw import described, picture

        if self.svg is not None:
            checked(self.svg)
        options, name, given = self.algorithm()
        if options.collective is None:
            raise Unsupported(f"show {name}: give its --collective")
        make = build if options.placed else draft
        nranks = one(options.ranks)
        schedule = make(options.collective, name, nranks, root=options.root, **given)
        chunks = "1 chunk" if schedule.nchunks == 1 else f"{schedule.nchunks} chunks"
        title = f"{options.collective} {options.name} on {nranks} ranks, {chunks}"
        legend = (
            "→2 5: sends chunk 5 to rank 2, which keeps it instead of its own; +5: which adds it"
        )
        said = _about(options.collective, name)
        if nranks <= _WIDEST:
            show(_columns(schedule, title), legend, *said)
        else:
            columns = width()
            show(title, "", " step   moves", f" {'─' * (columns - 2)}")
            for number, step in enumerate(schedule.steps):
                texts = [f"{src}{text}" for src, text in described(step.moves(), schedule.vector)]
                sys.stdout.write(_lines(number, texts, columns))
            show("", legend, *said)
        if options.svg is not None:
            picture(schedule, title, options.svg)
            print(f"drawn to {options.svg}", file=sys.stderr)
        return 0


def _about(collective: str, name: str) -> list[str]:
    """The description of an algorithm's moves; a composition or a file has none."""
    if name not in algorithms(collective):
        return []
    _, *more = (getdoc(algorithm(collective, name)) or "").split("\n\n")
    return [" ".join(one.split()) for one in more if not one.startswith("Raises")]


def _columns(schedule: Schedule, title: str) -> Table:
    """A row a step and a column a rank."""
    from collectives.schedule.draw import described

    n = schedule.nranks
    table = new_table(title, "step", *(f"rank {rank}" for rank in range(n)), text=1 + n)
    for number, step in enumerate(schedule.steps):
        sent: list[list[str]] = [[] for _ in range(n)]
        for src, text in described(step.moves(), schedule.vector):
            sent[src].append(text)
        table.add_row(str(number), *map("\n".join, sent))
    return table


def _lines(number: int, moves: list[str], columns: int) -> str:
    """A step's moves beside each other, as many in a line as fit."""
    each = max(map(len, moves), default=0)
    wide = max(1, (columns - 9) // (each + 3))
    padded = [text.ljust(each) for text in moves]
    rows = ["   ".join(padded[i : i + wide]).rstrip() for i in range(0, len(padded), wide)]
    heads = [str(number), *[""] * len(rows)]
    return "".join(f" {head:<6} {row}\n" for head, row in zip(heads, rows or [""], strict=False))
