"""The text lines of a table: heading, remarks above it, rows, and notes under a row."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, zip_longest
from textwrap import wrap
from typing import Any, NamedTuple

from bench.options.options import Options
from bench.run.noise import disturbances, greatest
from bench.run.screen import Group
from busbar.installation import busbar_version
from busbar.launchers import launched
from busbar.mpi import ThreadLevel
from busbar.mpi import remarks as level_remarks
from busbar.units import format_seconds
from collectives.execution.transport import Transport
from reports.exports import run_table
from reports.exports.run_table import Banner
from reports.records.cores import Load, warnings
from reports.records.measurement import Measurement, Placements
from reports.records.metrics import PLACEMENT

#: Environment variable with the terminal width of the process that starts the ranks.
COLUMNS = "BUSBAR_COLUMNS"
_LEAST_WIDTH = 80


class Nccl:
    """The layout of nccl-tests, which other programs parse."""

    def __init__(self, options: Options) -> None:
        self._statistic, self._iterations = options.statistic, bool(options.per_iteration)
        self._limit = options.limit == "column"

    def header(self, banner: Banner) -> list[str]:
        """The lines above the rows."""
        return run_table.header(banner, self._iterations, self._limit)

    def row(self, pair: Placements) -> list[str]:
        """The lines of a row."""
        return [run_table.row(pair, self._statistic, self._iterations, self._limit)]

    @property
    def width(self) -> int:
        """Width of a row in columns."""
        return len(run_table.columns(self._iterations, self._limit)[-1].rstrip())


class Compact:
    """One line for each placement. Type, operation and root follow a row if they vary."""

    def __init__(self, options: Options) -> None:
        self._statistic = options.statistic
        self._kinds, self._roots = (options.dtypes, options.ops), options.root is None

    def header(self, banner: Banner) -> list[str]:
        """The lines above the rows."""
        shared = [f"{len(kind)} kinds" if len(kind) > 1 else kind[0] for kind in self._kinds]
        return run_table.compact_header(banner, ", ".join(shared))

    def row(self, pair: Placements) -> list[str]:
        """The lines of a row."""
        first = pair.every[0]
        each = (first.dtype, first.op)
        words = [word for word, kind in zip(each, self._kinds, strict=True) if len(kind) > 1]
        words += [f"root {first.root}"] if self._roots and (first.root or 0) >= 0 else []
        return run_table.compact_rows(pair, self._statistic, " ".join(words))


TableLayout = Nccl | Compact
"""Makes the lines of a table, comments first."""


def layout(options: Options) -> TableLayout:
    """The requested layout. By default nccl-tests', unless the terminal is too narrow for it.

    Statistics of single iterations exist only in nccl-tests' layout.
    """
    wide, room = Nccl(options), columns()
    narrow = room is not None and room < wide.width and not bool(options.per_iteration)
    compact = options.layout == "compact" or (options.layout == "auto" and narrow)
    return Compact(options) if compact else wide


def columns() -> int | None:
    """Width of the terminal that results are printed to; None if output goes elsewhere."""
    with suppress(ValueError):
        return int(os.environ[COLUMNS]) if COLUMNS in os.environ else _own()
    return None


def for_ranks() -> dict[str, str]:
    """Environment variables that pass this process's terminal width to the ranks it starts."""
    width = _own()
    return {} if width is None else {COLUMNS: str(width)}


def report_width() -> int:
    """Width of closing reports: the terminal's, but at least 80 columns."""
    return max(_LEAST_WIDTH, columns() or 0)


def comment(text: str, width: int) -> list[str]:
    """A text as lines that begin with ``#``, wrapped at ``width`` columns."""
    lines = wrap(text, width - len("# "), subsequent_indent="  ", break_on_hyphens=False)
    return [f"# {line}" for line in lines]


def _own() -> int | None:
    """Width of this process's terminal; None under a launcher, which prints for its ranks."""
    with suppress(OSError, ValueError):
        if sys.stdout is not None and sys.stdout.isatty() and launched() is None:
            return os.get_terminal_size(sys.stdout.fileno()).columns
    return None


class RankSummary(NamedTuple):
    """The ranks for the heading: processes, and their GPUs if they have any."""

    devices: list[tuple[int, int, str, str]]
    slots: list[tuple[int, str]]

    @classmethod
    def of(cls, places: Sequence[Mapping[str, Any]]) -> RankSummary:
        """The summary of what `bench.run.environment.place` found on every rank."""
        return cls(
            [(n, p["pid"], p["host"], p["device"] or p["cpu"]) for n, p in enumerate(places)],
            [(p["index"], p["gpu"]) for p in places if p["index"] is not None and p["gpu"]],
        )


def banner(
    program: str,
    options: Options,
    library: str,
    people: RankSummary,
    group: Group | None,
    above: bool,
    graph: bool,
) -> Banner:
    """The heading of a table; ``program`` names what its rows run.

    ``above``: True if an earlier table has listed the ranks.
    """
    return Banner(
        program=program,
        version=f"busbar version {busbar_version()} {library}",
        minimum=options.ends[0],
        maximum=options.ends[1],
        step=int(options.factor or 2) if options.step is None else options.step,
        factor=options.step is None,
        warmup=options.warmup,
        iterations=options.iterations,
        validation=options.check.iterations,
        devices=people.devices,
        slots=people.slots,
        group=0 if group is None else group.number,
        above=above,
        graph=graph,
    )


def remarks(
    group: Group | None,
    crowd: Load | None,
    ranks: int,
    transport: Transport,
    mpi: ThreadLevel | None,
    library: str,
) -> list[str]:
    """The remarks above a table: group, shared cores, MPI's thread level, transport.

    ``group``: the ranks that the table is for. ``crowd``: how many ranks share cores. ``mpi``: the
    thread level if rows of the table use MPI, else None.
    """
    texts = [] if group is None else [group.title]
    shared = crowd is not None and crowd.per_core > 1
    if crowd is not None and shared:
        texts.append(crowd.remark(ranks if group is None else group.every))
    if mpi is not None:
        texts += level_remarks(mpi, library, shared)
    return [*texts, *transport.remarks]


def alternating(nodes: Sequence[int]) -> list[str]:
    """A remark if no two successive ranks share a host, although hosts have several ranks.

    ``nodes``: the node of each rank. A ring in the order of the ranks then crosses the network more
    often than it must: mostly the launcher got a list of hosts without a number of ranks for each.
    """
    hosts, most = len({*nodes}), max(Counter(nodes).values())
    hops = sum(a != b for a, b in pairwise([*nodes, nodes[0]]))
    if hops <= hosts or any(a == b for a, b in pairwise(nodes)):
        return []
    sign = launched()
    option = sign.blocks(most) if sign else ""
    return [
        f"ranks alternate between hosts: {hops} of a ring's {len(nodes)} hops cross the network, in"
        f" blocks {hosts}{option and f' ({option})'}"
    ]


def shown(pair: Placements, layout: TableLayout, explained: set[str]) -> list[str]:
    """The lines of a row, and the notes below it.

    ``explained``: why rows of this table were skipped, as printed so far; a reason is added to it,
    and not printed again.
    """
    lines, first = layout.row(pair), pair.every[0]
    width = max(report_width(), *map(len, lines))
    if first.chosen_algorithm:
        chosen = f"{first.chosen_algorithm} over {first.transport}"
        lines.append(f"# at {first.size} B {first.algorithm} is {chosen}")
    reasons = dict.fromkeys(one.skipped for one in pair.every)
    for reason in filter(None, reasons):
        one = next(one for one in pair.every if one.skipped == reason)
        both = len(reasons) == 1 and len(pair.every) == len(pair)
        what = "" if both else f"{PLACEMENT[one.placement]} "
        if what + reason not in explained:
            lines.append(f"# skipped {what}at {first.size} B: {reason}")
            explained.add(what + reason)
    alike = _disturbed_alike(pair.every)
    lines += comment(alike, width) if alike else []
    remarks = (_library_facts, _overlapped, *(() if alike else (_disturbed,)), _lost)
    for one in pair.every:
        if text := "; ".join(filter(None, (remark(one) for remark in remarks))):
            lines += comment(f"{PLACEMENT[one.placement]}: {text}", width)
    for one in pair.every:
        about = f"# at {first.size} B: {PLACEMENT[one.placement]}"
        lines += [f"{about}: {text}" for text in warnings(one.gpus)]
    return lines


def _library_facts(one: Measurement) -> str:
    return "  ".join(f"{name} {value}" for name, value in one.library_facts.items())


def _overlapped(one: Measurement) -> str:
    """The overlap of a collective with computation, as text."""
    if (overlap := one.overlapped) is None:
        return ""
    return (
        f"with {format_seconds(overlap.computing)} of computing {format_seconds(overlap.together)}:"
        f" overlap {100 * overlap.share:.0f} %, exposed {format_seconds(overlap.exposed)}"
    )


def _disturbed(one: Measurement) -> str:
    return disturbances(one.core_wait, one.noise)


def _disturbed_alike(every: Sequence[Measurement]) -> str:
    """One note for both placements of a row, with the greater of each; empty if one has none."""
    if len(every) < 2 or not all(map(_disturbed, every)):
        return ""
    by_rank = zip_longest(*(one.core_wait for one in every), fillvalue=0.0)
    noises = [one.noise for one in every if one.noise is not None]
    return disturbances(list(map(max, by_rank)), greatest(noises))


def _lost(one: Measurement) -> str:
    window = one.window
    if window is None or not window.lost:
        return ""
    return (
        f"{window.lost} of {window.begun} iterations do not count, for some rank was late;"
        f" windows up to {format_seconds(window.widest_s)}"
    )
