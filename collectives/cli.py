"""The command line of ``python -m collectives``: list, show, verify and cost schedules.

Prints tables to standard output and one line an error to standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from collectives.bounds import bound
from collectives.catalogue import (
    algorithm,
    algorithms,
    build,
    collectives,
    draft,
    from_file,
    parse,
    spec,
)
from collectives.cost import cost
from collectives.errors import BusbarError, ScheduleError, Unsupported
from collectives.msccl import cli as files
from collectives.schedule import Schedule

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["main", "summary"]

_MOST_RANKS = 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status: 0, 1 for a failed proof, 2 for bad input."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except BusbarError as error:
        print(f"collectives: {error}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        # The reader has seen enough (`| head`); what is left in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Say what is wrong, and end with status 2."""
        self.exit(2, f"collectives: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m collectives", description="Schedules of collectives: see, prove, cost."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    table = (
        ("list", "the collectives and their algorithms", _list),
        ("show", "a schedule step by step", _show),
        ("verify", "prove schedules, in and out of place", _verify),
        ("cost", "steps, bytes and additions beside the lower bounds", _cost),
    )
    for name, text, run in table:
        command = commands.add_parser(name, help=text, description=text.capitalize() + ".")
        command.set_defaults(run=run)
        if name != "list":
            command.add_argument(
                "name",
                metavar="NAME",
                help="an algorithm, with parameters as in chain:segments=4; or a composition like"
                " halving+ring; or an MSCCL FILE.xml" + ("" if name == "show" else "; or all"),
            )
        command.add_argument("-c", "--collective", help="which collective")
        if name == "verify":
            command.add_argument(
                "-n",
                "--ranks",
                default="1-17,32",
                help="rank counts, like 2-8,16 (default 1-17,32)",
            )
        elif name != "list":
            command.add_argument("-n", "--ranks", default="8", help="rank count (default 8)")
        if name != "list":
            command.add_argument("-r", "--root", type=int, default=0, help="the root's rank")
            for key, text in (("grid", "a torus, like 4x4"), ("segments", "pipeline segments")):
                command.add_argument(f"--{key}", help=text)
        if name == "show":
            command.add_argument("--placed", action="store_true", help="slots of in, out, scratch")
            command.add_argument("--svg", type=Path, metavar="FILE", help="draw it (.svg or .png)")
    files.add_commands(commands.add_parser)
    return parser


def _ranks(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise Unsupported(f"-n {text}: {part!r} is no rank count; write 8, or 2-8,16")
        found += range(int(low), int(high if dash else low) + 1)
    if not found or min(found) < 1 or max(found) > _MOST_RANKS:
        raise Unsupported(f"-n {text}: rank counts go from 1 to {_MOST_RANKS}")
    return found


def _one(text: str) -> int:
    found = _ranks(text)
    if len(found) != 1:
        raise Unsupported(f"-n {text}: one rank count is needed")
    return found[0]


def _asked(options: argparse.Namespace) -> tuple[str, dict[str, object]]:
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


def _pairs(options: argparse.Namespace, name: str) -> Iterator[tuple[str, str]]:
    """(collective, algorithm) of everything that was asked for."""
    wanted = collectives() if options.collective is None else [spec(options.collective).name]
    found = [
        (collective, one)
        for collective in wanted
        for one in (algorithms(collective) if name == "all" else [name])
        if "+" in one or from_file(one) or one in algorithms(collective)
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


def _print(*things: object) -> None:
    from rich.console import Console

    # A pipe gets lines as long as they are; only a terminal has an edge to fold at.
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    for thing in things:
        console.print(thing)


def _table(title: str, *columns: str, text: int = 1) -> Table:
    """A table whose first ``text`` columns are words, the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < text else "right", overflow="fold")
    return table


def summary(collective: str, name: str) -> str:
    """What an algorithm says of itself in one line."""
    doc = (algorithm(collective, name).__doc__ or "").strip().splitlines()
    return doc[0] if doc else ""


def _list(options: argparse.Namespace) -> int:
    wanted = collectives() if options.collective is None else [spec(options.collective).name]
    table = _table("", "collective", "algorithm", "cost in brief", text=3)
    for collective in wanted:
        for i, name in enumerate(algorithms(collective)):
            table.add_row(collective if i == 0 else "", name, summary(collective, name))
        table.add_section()
    _print(table)
    return 0


def _show(options: argparse.Namespace) -> int:
    from collectives.draw import cells, picture

    name, given = _asked(options)
    if options.collective is None:
        raise Unsupported(f"show {name}: give its --collective")
    make = build if options.placed else draft
    nranks = _one(options.ranks)
    schedule = make(options.collective, name, nranks, root=options.root, **given)
    chunks = "1 chunk" if schedule.nchunks == 1 else f"{schedule.nchunks} chunks"
    title = f"{options.collective} {options.name} on {nranks} ranks, {chunks}"
    table = _table(title, "step", *(f"rank {rank}" for rank in range(nranks)), text=1 + nranks)
    for number, step in enumerate(schedule.all_moves):
        sent = cells(step, nranks, schedule.vector)
        table.add_row(str(number), *("\n".join(lines) for lines in sent))
    legend = "→2 5: sends chunk 5 to rank 2, which keeps it instead of its own; +5: which adds it"
    if nranks <= _WIDEST:
        _print(table, legend)
    else:
        _print(_listing(schedule, title), legend)
    if options.svg is not None:
        picture(schedule, title, options.svg)
        print(f"drawn to {options.svg}", file=sys.stderr)
    return 0


# More ranks than this make no readable columns; their moves are listed.
_WIDEST = 8


def _listing(schedule: Schedule, title: str) -> Table:
    from collectives.draw import cells

    table = _table(title, "step", "moves", text=2)
    for number, step in enumerate(schedule.all_moves):
        sent = cells(step, schedule.nranks, schedule.vector)
        lines = [f"{rank}{one}" for rank, some in enumerate(sent) for one in some]
        table.add_row(str(number), "   ".join(lines))
    return table


def _verify(options: argparse.Namespace) -> int:
    from collectives.verify import verify

    if from_file(options.name):
        return files.verify(Path(options.name))
    name, given = _asked(options)
    table = _table("", "collective", "algorithm", "proven for ranks", "not for", text=4)
    status = 0
    counts = _ranks(options.ranks)
    for collective, one in _pairs(options, name):
        what = spec(collective)
        proven, refused, failed = [], [], ""
        for nranks in counts:
            roots = {min(options.root, nranks - 1), nranks - 1} if what.rooted else {0}
            try:
                for root in sorted(roots):
                    schedule = build(collective, one, nranks, root=root, **given)
                    for in_place in (False, True)[: 1 + what.in_place]:
                        verify(schedule, what, root=root, in_place=in_place)
                proven.append(nranks)
            except Unsupported as error:
                refused.append((nranks, str(error)))
            except ScheduleError as error:
                failed, status = f"{nranks} ranks: {error}", 1
                break
        if not proven and not failed and name != "all":
            raise Unsupported(refused[-1][1])
        table.add_row(collective, one, _spans(proven), failed or _spans([n for n, _ in refused]))
    _print(table)
    return status


def _spans(numbers: list[int]) -> str:
    """1, 2, 3, 5 as ``1-3 5``."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][-1] + 1:
            parts[-1].append(n)
        else:
            parts.append([n])
    return " ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts) or "-"


def _cost(options: argparse.Namespace) -> int:
    name, given = _asked(options)
    nranks = _one(options.ranks)
    tables: dict[str, Table] = {}
    for collective, one in _pairs(options, name):
        if collective not in tables:
            tables[collective] = _costs(collective, nranks)
        try:
            schedule = draft(collective, one, nranks, root=options.root, **given)
        except Unsupported as error:
            if name != "all":
                raise
            tables[collective].add_row(one, "-", *[""] * 5)
            print(f"collectives: {collective}: {error}", file=sys.stderr)
            continue
        found = cost(schedule, spec(collective))
        volumes = (found.total, found.out, found.into, found.reduced)
        row = (str(found.steps), str(found.rounds), *map(_number, volumes))
        tables[collective].add_row(one, *row)
    _print(
        *tables.values(),
        "Volumes are in units of the collective's own total n. rounds: messages in a row when a",
        "port carries one at a time each way; out, in, reductions: the busiest rank's.",
        "Lower bounds: Chan et al. 2007, for such ports.",
    )
    return 0


def _costs(collective: str, nranks: int) -> Table:
    """An empty table of costs, with the lower bounds where there are."""
    columns = ("steps", "rounds", "total", "out", "in", "reductions")
    table = _table(f"{collective} on {nranks} ranks", "algorithm", *columns)
    least = bound(collective, nranks)
    if least is not None:
        volumes = ("-" if v is None else _number(v) for v in (least.out, least.into, least.reduced))
        table.add_row("lower bound", "", str(least.rounds), "", *volumes, end_section=True)
    return table


def _number(value: float) -> str:
    return f"{value:.4g}"
