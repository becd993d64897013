"""The fastest algorithm for each range of sizes, in words and as table cells."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from busbar.units import format_rate, format_seconds, format_size
from reports.analysis.winners import Cells, Stretch, Winner, stretches, winners
from reports.records.measurement import LIBRARY, Measurement

UNSURE = "~: at one of these sizes, or at all, another may be as fast"
HEADS = ("sizes", "algorithm", "takes", "next takes (95 %)", "library takes")


def answers(rows: Sequence[Measurement]) -> dict[str, list[Stretch]]:
    """The best algorithm by size, in words, for each group of rows and rank count.

    Groups without a competitor are left out.
    """
    found = {
        f"{thing}, {head(ranks, False)}": stretches(cells, ranks)
        for thing, cells in winners(rows).items()
        for ranks in counts(cells)
    }
    return {what: sizes for what, sizes in found.items() if any(one.compared for one in sizes)}


def told(found: Sequence[Stretch]) -> tuple[list[str], list[list[str]]]:
    """A table of the stretches: of `HEADS` those that say something, and a line a stretch."""
    lines = [(_sizes(s), _name(s), _figures(s.won), _next(s.won), _library(s.won)) for s in found]
    kept = [n for n in range(len(HEADS)) if any(line[n] for line in lines)]
    return [HEADS[n] for n in kept], [[line[n] for n in kept] for line in lines]


def crossovers(found: Sequence[Stretch]) -> str:
    """Between which sizes the fastest changes, in words; empty where it never does."""
    return ", ".join(
        f"{a.name} to {b.name} between {format_size(a.sizes[1])} and {format_size(b.sizes[0])}"
        for a, b in pairwise(found)
    )


def _sizes(one: Stretch) -> str:
    first, last = map(format_size, one.sizes)
    return first if first == last else f"{first} - {last}"


def _name(one: Stretch | Winner) -> str:
    return f"{'' if one.sure else '~'}{one.name}"


def _figures(won: Sequence[Winner]) -> str:
    """The time where that is what matters, else busbw, of the first size and of the last."""
    ends = [_figure_of(w) for w in (won[0], won[-1])]
    if ends[0] == ends[1]:
        return ends[0]
    return f"{ends[0].removesuffix(ends[1][ends[1].rindex(' ') :])} - {ends[1]}"


def _figure_of(winner: Winner) -> str:
    if winner.latency_bound:
        return format_seconds(winner.row.time_s)
    return f"{format_rate(winner.row.busbw_bytes_per_s)} GB/s"


def _next(won: Sequence[Winner]) -> str:
    """The next algorithm, if it is one for all sizes, and how many times as long it takes."""
    known = [w for w in won if w.margin is not None]
    names = {w.against for w in known}
    name = f" {names.pop()}" if len(names) == 1 else ""
    bounds = [b for w in known for b in (w.low, w.high) if b is not None]
    margins = bounds or [w.margin for w in known if w.margin is not None]
    return f"{_span(margins)}{name}" if margins else ""


def _library(won: Sequence[Winner]) -> str:
    """The library's time over the winner's; empty where it is the next, or wins, at all sizes."""
    told = all(w.against == LIBRARY or w.library is None for w in won)
    return "" if told else _span([w.library for w in won if w.library is not None])


def _span(values: Sequence[float]) -> str:
    low, high = _factor(min(values)), _factor(max(values))
    return f"{low}x" if low == high else f"{low}-{high}x"


def cell(winner: Winner) -> tuple[str, str]:
    """A cell of a map: the name, and the figures."""
    if winner.margin is None:
        margin = "alone"
    elif winner.low is None or winner.high is None:
        margin = _factor(winner.margin)
    else:
        margin = f"{_factor(winner.low)}-{_factor(winner.high)}"
    return _name(winner), f"{_figure_of(winner).removesuffix(' GB/s')} {margin}"


def _factor(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.0f}"


def head(ranks: int, crowded: bool) -> str:
    """``4 ranks``, with an asterisk where they shared cores."""
    return f"{ranks} rank{'s' * (ranks != 1)}{'*' * crowded}"


def counts(cells: Cells) -> list[int]:
    """The rank counts that were measured."""
    return sorted({ranks for _, ranks in cells})
