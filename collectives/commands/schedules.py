"""``list``, ``show`` and ``verify``: list algorithms, show a schedule's steps, prove schedules."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from inspect import getdoc
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from busbar.arguments import Parser, program
from busbar.commands import Command
from busbar.cpulist import listed
from busbar.errors import BusbarError, ScheduleError, Unsupported
from busbar.options import Self, option, switch
from busbar.tables import new_table
from busbar.terminal import make_printable, print_note
from busbar.units import format_count, parse_ranks
from collectives.commands.command import (
    PROSE,
    SchedulesOptions,
    complete_collective,
    complete_name,
    pairs,
    parse_rank_count,
    show,
    width,
)
from collectives.formats.convert import proven
from collectives.formats.load import build, draft, is_file, prove_file
from collectives.schedule.catalogue import algorithm, algorithms, collectives, spec
from collectives.schedule.layout import Layout
from collectives.schedule.schedule import Schedule

if TYPE_CHECKING:
    from rich.table import Table

# With more ranks than this, or without room, moves are listed, not shown in a column per rank.
_WIDEST = 8


def summary(collective: str, name: str) -> str:
    """The first sentence or two of an algorithm's docstring: its cost. Ranks are called P."""
    doc = (algorithm(collective, name).__doc__ or "").strip().splitlines()
    return _of_ranks(doc[0].partition(" Raises ")[0].removeprefix("In ")) if doc else ""


def _of_ranks(text: str) -> str:
    """A docstring's text for the screen: P for the parameter n (ranks), names without quotes."""
    return re.sub(r"\bn\b", "P", text).replace("``", "")


class ListCommand(Command):
    """The collectives and their algorithms."""

    collective: str | None = option(
        "-c --collective  which collective", completes=complete_collective
    )

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: object) -> Self:
        """Parse the options. Raises Unsupported for a collective without ``-c``."""
        if argv and argv[0] in collectives():
            raise Unsupported(f"a collective follows -c: {parser.prog} -c {argv[0]}")
        return super().parse(argv, parser, **more)

    def run(self) -> int:
        """Print the table."""
        wanted = collectives() if self.collective is None else [spec(self.collective).name]
        table = new_table("", "collective", "algorithm", "cost in brief", text=3)
        for collective in wanted:
            for i, name in enumerate(algorithms(collective)):
                table.add_row(collective if i == 0 else "", name, summary(collective, name))
            table.add_section()
        show(table, "P: ranks; lg: logarithm to base 2; the vector: N bytes.")
        return 0


class ShowCommand(SchedulesOptions, Command):
    """A schedule step by step."""

    placed: bool = switch("--placed  show where each chunk lies in the buffers in, out and scratch")
    svg: Path | None = option("--svg FILE  draw it (.svg, .png or .pdf)")

    def run(self) -> int:
        """Print the steps, or draw them."""
        from busbar.files import check_figure as checked

        if self.name == "all" and self.collective is None:
            raise Unsupported(f"show all: give its --collective: {', '.join(collectives())}")
        names = self.names(self.collective or "")
        if self.svg is not None:
            checked(self.svg)
            if len(names) > 1:
                first = self.svg.with_stem(f"{self.svg.stem}-{names[0].partition(':')[0]}")
                of = f" -c {self.collective}" if self.collective else ""
                raise Unsupported(
                    "--svg draws one algorithm; give each a command and a file, as"
                    f" {program('collectives')} show {names[0]}{of} --svg {first}"
                )
        refused: list[Unsupported] = []
        for number, name in enumerate(names):
            try:
                replace(self, name=name)._show("\n" * (number > len(refused)))
            except Unsupported as error:
                if self.name != "all":
                    raise
                refused.append(error)
        if len(refused) == len(names):
            raise refused[-1]
        for reason in refused:
            print(f"collectives: left out: {reason}", file=sys.stderr)
        return 0

    def _show(self, before: str) -> None:
        """Print the steps of one algorithm after ``before``, or draw them."""
        from collectives.schedule.draw import describe_moves, draw_schedule

        options, name, parameters = self.algorithm()
        collective = options.collective_of(name)
        make = build if options.placed else draft
        nranks = parse_rank_count(options.ranks)
        schedule = make(collective, name, nranks, root=options.root, **parameters)
        chunks = format_count(schedule.nchunks, "chunk")
        title = f"{collective} {options.name} on {format_count(nranks, 'rank')}, {chunks}"
        description = _about(collective, name)
        sys.stdout.write(before)
        table = _columns(schedule, title) if nranks <= _WIDEST else None
        if table is not None and _whole_width(table) <= width():
            show(table, *_legend(schedule, listed=False), *description)
        else:
            columns = width()
            show(title, "", " step   moves", f" {'─' * (columns - 2)}")
            for number, step in enumerate(schedule.steps):
                texts = [
                    f"{src}{text}" for src, text in describe_moves(step.moves(), schedule.vector)
                ]
                sys.stdout.write(_lines(number, texts, columns))
            show("", *_legend(schedule, listed=True), *description)
        if options.svg is not None:
            draw_schedule(schedule, title, options.svg)
            print(f"drawn to {options.svg}", file=sys.stderr)


def _legend(schedule: Schedule, listed: bool) -> list[str]:
    """Lines that explain the marks of moves; ``listed``: moves begin with their sender."""
    last, chunk = schedule.nranks - 1, max(0, schedule.nchunks - 1)
    text = f"0→{last}: rank 0 sends to" if listed else f"→{last}: the rank of this column sends to"
    text += f" rank {last}. "
    if schedule.vector:
        text += "0: chunk 0, which replaces the receiver's own; +0: chunk 0, which is added to it"
        text += f"; 0-{chunk}: chunks 0 to {chunk}." if chunk else "."
    else:
        text += "in[0] out[1]: slot 0 of its buffer in, to slot 1 of the receiver's buffer out;"
        text += " +out[1]: which is added there."
    return wrap(text, min(width(), PROSE))


def _about(collective: str, name: str) -> list[str]:
    """The description of an algorithm's moves; a composition or a file has none."""
    if name not in algorithms(collective):
        return []
    _, *more = (getdoc(algorithm(collective, name)) or "").split("\n\n")
    texts = [_of_ranks(" ".join(one.split())) for one in more if not one.startswith("Raises")]
    return [line for text in texts for line in wrap(text, min(width(), PROSE))]


def _whole_width(table: Table) -> int:
    """The width at which no cell of a table is wrapped."""
    from rich.console import Console

    return Console(width=10_000).measure(table).maximum


def _columns(schedule: Schedule, title: str) -> Table:
    """A table of a schedule with a row per step and a column per rank."""
    from collectives.schedule.draw import describe_moves

    n = schedule.nranks
    table = new_table(title, "step", *(f"rank {rank}" for rank in range(n)), text=1 + n)
    for number, step in enumerate(schedule.steps):
        sent: list[list[str]] = [[] for _ in range(n)]
        for src, text in describe_moves(step.moves(), schedule.vector):
            sent[src].append(text)
        table.add_row(str(number), *map("\n".join, sent))
    return table


def _lines(number: int, moves: list[str], columns: int) -> str:
    """The lines of one step, with as many moves in a line as fit."""
    each = max(map(len, moves), default=0)
    wide = max(1, (columns - 9) // (each + 3))
    padded = [text.ljust(each) for text in moves]
    rows = ["   ".join(padded[i : i + wide]).rstrip() for i in range(0, len(padded), wide)]
    heads = [str(number), *[""] * len(rows)]
    return "".join(f" {head:<6} {row}\n" for head, row in zip(heads, rows or [""], strict=False))


_PROVEN = (
    "proven, in and out of place: each chunk of each rank's result holds every",
    "contribution that the collective asks for exactly once (of a barrier at least",
    "once) and no other, and no step reads a chunk that nobody has written.",
)


class VerifyCommand(SchedulesOptions, Command):
    """Prove schedules, in and out of place."""

    more: tuple[str, ...] = option(
        "MORE  further names or files", (), nargs="*", completes=complete_name
    )
    ranks: str = option("-n --ranks  numbers of ranks, like 2-8,16", "1-17,32")

    def run(self) -> int:
        """Print what was proven; returns 1 if a schedule is wrong, 2 if one cannot be proven."""
        words = (self.name, *self.more)
        status = max((self._verify_file(Path(one)) for one in words if is_file(one)), default=0)
        names = ",".join(one for one in words if not is_file(one))
        return max(status, replace(self, name=names)._verify_names() if names else 0)

    def _verify_names(self) -> int:
        """Prove algorithms; returns exit status 1 if a schedule is wrong."""
        options, name, parameters = self.algorithm()
        table = new_table("", "collective", "algorithm", "proven for ranks", "not for", text=4)
        status = 0
        counts = parse_ranks(options.ranks)
        for collective, each in pairs(options, name):
            what = spec(collective)
            ranks, refused, failed = [], [], ""
            for nranks in counts:
                roots = {min(options.root, nranks - 1), nranks - 1} if what.rooted else {0}
                try:
                    for root in sorted(roots):
                        schedule = build(collective, each, nranks, root=root, **parameters)
                        proven(schedule, Layout.of(schedule, what, root))
                    ranks.append(nranks)
                except Unsupported as error:
                    refused.append((nranks, str(error)))
                except ScheduleError as error:
                    failed, status = f"{nranks} ranks: {error}", 1
                    break
            if not ranks and not failed and name != "all":
                raise Unsupported(refused[-1][1])
            others = failed or _spans([n for n, _ in refused])
            table.add_row(collective, each, _spans(ranks), others)
        show(table, *_PROVEN)
        return status

    def _verify_file(self, path: Path) -> int:
        """Prove the algorithm of a file; returns the exit status. Of several files, a line each."""
        try:
            proof = prove_file(path, print_note)
            self.check_layout(path, proof.layout)
        except BusbarError as error:
            print(f"collectives: {make_printable(str(error))}", file=sys.stderr)
            return 1 if isinstance(error, ScheduleError) else error.exit_status
        lines = "\n".join(proof.summary).splitlines()
        print(("; " if self.more else "\n").join(lines))
        return 0


def _spans(numbers: list[int]) -> str:
    """Numbers in short: 1, 2, 3, 5 as ``1-3 5``; ``-`` for none."""
    return listed(numbers).replace(",", " ") or "-"
