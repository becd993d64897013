"""Functions that several commands share: options, names, rank counts, output."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from textwrap import wrap

from busbar.arguments import Parser, unknown
from busbar.completion import behind_commas, run_files
from busbar.errors import Unsupported
from busbar.options import OptionGroup, Self, option
from busbar.terminal import open_console
from busbar.units import MOST_RANKS, format_bytes, format_count, parse_ranks, sweep_sizes
from collectives.formats.load import is_file, load_layout
from collectives.schedule.catalogue import (
    algorithm,
    algorithms,
    collectives,
    parse,
    spec,
    synonyms,
    usual,
)
from collectives.schedule.layout import Layout

_MOST_SIZES = 256
#: Sentences below a table are at most this wide.
PROSE = 80
_NAME = (
    "an algorithm, with parameters as in chain:segments=4; or a composition like halving+ring; or a"
    " file of MSCCL or MSCCL++"
)


def complete_name(prefix: str) -> list[str]:
    """What a shell offers for NAME: algorithms of any collective, else files."""
    names = {one for collective in collectives() for one in algorithms(collective)}
    offered = behind_commas(prefix, sorted(names))
    return [one for one in offered if one.startswith(prefix)] or run_files(prefix)


def complete_collective(_: str) -> list[str]:
    """What a shell offers for ``--collective``."""
    return collectives()


def commands_for(words: Sequence[str]) -> dict[str, str]:
    """The command to suggest for each word that is none, as an algorithm or a collective.

    ``words``: those behind it; of ``allreduce ring`` the algorithm is one of them.
    """
    suggested = {"law": "busbar cluster law", "trace": "busbar step --trace FILE.json"}
    show = "busbar collectives show"
    for collective in collectives():
        for name in algorithms(collective):
            better = name not in suggested or collective == "allreduce"
            suggested |= {name: f"{show} {name} -c {collective}"} if better else {}
        names = [word for word in words[:1] if word in algorithms(collective)]
        suggested[collective] = f"{show} {(names or [usual(collective)])[0]} -c {collective}"
    return suggested


class ScheduleOptions(OptionGroup):
    """The options that select a schedule."""

    name: str = option(f"NAME  {_NAME}", completes=complete_name)
    collective: str | None = option(
        "-c --collective  which collective", completes=complete_collective
    )
    ranks: str = option("-n --ranks  number of ranks, not iterations", "8")
    root: int = option("-r --root  root rank", 0)
    grid: str | None = option("--grid  a torus, like 4x4")
    segments: str | None = option("--segments  pipeline segments")

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: object) -> Self:
        """Parse the options. Raises Unsupported for ``allreduce ring`` or ``ring allreduce``."""
        words = list(takewhile(lambda word: not word.startswith("-"), argv[:2]))
        for collective in [word for word in words if word in collectives()]:
            name = next((word for word in words if word != collective), cls.any_name(collective))
            raise Unsupported(f"a collective follows -c: {parser.prog} {name} -c {collective}")
        return super().parse(argv, parser, **more)

    @classmethod
    def any_name(cls, collective: str) -> str:
        """A NAME to suggest for a collective."""
        return usual(collective)

    def algorithm(self) -> tuple[Self, str, dict[str, object]]:
        """These options, the algorithm's name and its parameters.

        If NAME is a file, the file states collective, ranks and root. A parameter ``root`` is the
        same as ``--root``. Raises Unsupported if the options contradict the file.
        """
        options = self._of_file() if is_file(self.name) else self
        extra = [f"{key}={value}" for key in ("grid", "segments") if (value := getattr(self, key))]
        name, parameters = parse(":".join([self.name, *extra]))
        root = parameters.pop("root", options.root)
        if not isinstance(root, int):
            raise Unsupported(f"root must be a rank, not {root!r}")
        return replace(options, root=root), name, parameters

    def collective_of(self, name: str) -> str:
        """The requested collective; else all-reduce if it has the algorithm, else the first one.

        ``name``: of the algorithm, without parameters. Raises Unsupported if no collective has it.
        """
        if self.collective is not None:
            return spec(self.collective).name
        known = [each for each in collectives() if name in algorithms(each)]
        if "+" in name or "allreduce" in known:
            return "allreduce"
        if not known:
            raise no_algorithm(name)
        return known[0]

    def _of_file(self) -> Self:
        layout = load_layout(path := Path(self.name))
        self.check_layout(path, layout)
        return replace(
            self, collective=layout.spec.name, ranks=str(layout.nranks), root=layout.root
        )

    def check_layout(self, path: Path, layout: Layout) -> None:
        """Raise Unsupported if the options contradict the collective, ranks or root of a file."""
        what = layout.spec
        if self.collective is not None and spec(self.collective).name != what.name:
            raise Unsupported(f"{path}: it is for {what.name}, not {self.collective}")
        if "ranks" in self.given and layout.nranks not in parse_ranks(self.ranks):
            raise Unsupported(f"{path}: it is for {layout.nranks} ranks, not {self.ranks}")
        if what.rooted and self.root not in (0, layout.root):
            raise Unsupported(f"{path}: its root is {layout.root}, not {self.root}")


class SchedulesOptions(ScheduleOptions):
    """The options that select schedules of one, several or all algorithms."""

    name: str = option(
        f"NAME  {_NAME}; or several with commas between, or all", completes=complete_name
    )

    @classmethod
    def any_name(cls, collective: str) -> str:
        """All algorithms."""
        return "all"

    def names(self, collective: str) -> list[str]:
        """The requested names, each with its parameters; ``all`` are those of a collective."""
        if self.name == "all":
            return algorithms(spec(collective).name)
        return [self.name] if is_file(self.name) else self.name.split(",")


def sizes_between(low: int, high: int, factor: float | None) -> list[int]:
    """The sizes of a sweep (factor 2 for None). Raises Unsupported for too many."""
    sizes = sweep_sizes(low, high, factor=factor, step=None)
    if len(sizes) > _MOST_SIZES:
        raise Unsupported(f"{len(sizes)} sizes; at most {_MOST_SIZES}, give a greater -f")
    return sizes


def ranks_of_grid(parameters: Mapping[str, object]) -> int | None:
    """The number of ranks of an algorithm's grid; None if the parameters have none."""
    sides = parameters.get("grid") or parameters.get("dims")
    return math.prod(sides) if isinstance(sides, tuple) else None


def server_over_ring(
    ratios: Mapping[int, float], nranks: int, by_port: float, why: str = ""
) -> list[str]:
    """Lines of a sentence on the time of ps over that of ring, as `reports.analysis.answer` has it.

    ``ratios``: of the times, by bytes. ``by_port``: the ratio of the bytes through the busiest
    port; ``why``: a clause on why the times have another one.
    """
    (first, ratio), *more = ratios.items()
    at = "".join(f", {times:.3g} at {format_bytes(nbytes)}" for nbytes, times in more)
    text = (
        f"ps takes {ratio:.3g} times as long as ring at {format_bytes(first)}{at} on"
        f" {format_count(nranks, 'rank')}; by bytes through the busiest port, with one port a"
        f" rank, {by_port:.3g} times{why and '; '}{why}"
    )
    return wrap(text, min(width(), PROSE))


def parse_rank_count(text: str, most: int = MOST_RANKS) -> int:
    """Parse a text with one rank count. Raises Unsupported for several or none."""
    counts = parse_ranks(text, most)
    if len(counts) != 1:
        raise Unsupported(f"-n {text}: one rank count is needed")
    return counts[0]


def pairs(options: ScheduleOptions, name: str) -> Iterator[tuple[str, str]]:
    """The requested pairs (collective, algorithm). ``name``: ``all``, or names with commas."""
    wanted = collectives() if options.collective is None else [spec(options.collective).name]
    names = [name] if is_file(name) else name.split(",")
    chosen = [
        (collective, each)
        for collective in wanted
        for each in (algorithms(collective) if name == "all" else names)
        if "+" in each or is_file(each) or each in algorithms(collective)
    ]
    known = {each for _, each in chosen}
    for lost in [] if name == "all" else [each for each in names if each not in known]:
        if options.collective:
            algorithm(wanted[0], lost)  # raises, with the list of names
        raise no_algorithm(lost)
    if "+" in name and options.collective is None:
        raise Unsupported(f"{name}: a composition needs --collective")
    yield from chosen


def no_algorithm(name: str) -> Unsupported:
    """The error for an algorithm that no collective has."""
    if name in collectives():
        return Unsupported(f"{name} is a collective: -c {name}")
    known = dict.fromkeys(each for collective in collectives() for each in algorithms(collective))
    return unknown("algorithm", name, known, elsewhere=synonyms(known))


def width() -> int:
    """The width of output in columns: the terminal's, or COLUMNS.

    160 if standard output is no terminal.
    """
    from rich.console import Console

    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console().width if known else 160


def show(*things: object) -> None:
    """Print tables and lines to standard output."""
    console = open_console(width=width(), highlight=False, markup=False)
    for thing in things:
        console.print(thing)
