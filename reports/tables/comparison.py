"""A comparison for a terminal: its tables, its words counted, and what could tell more."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.tables import WIDE, Column, RenderedTable, render_rich
from busbar.units import format_change, format_digits, format_size
from reports.analysis.compare import CANNOT_TELL, WORDS, Comparison
from reports.records.measurement import STEP, grouped
from reports.records.metrics import BESIDE, present
from reports.records.shown import setting
from reports.statistics.inference import launches_to_see, least_seen
from reports.tables.pairs import TESTS

_CLOCKS = 0.01  # from this difference on it is said
_ASKED = 0.05  # the difference of which is said how many launches see it


def comparison_tables(comparisons: Sequence[Comparison], width: int) -> list[RenderedTable]:
    """A comparison, a table a measured thing and metric, whose change it is."""
    groups = grouped(comparisons, lambda c: (setting(c.row.base), c.metric))
    return [_compared(name, group, width) for (name, _), group in groups.items()]


def _compared(name: str, comparisons: Sequence[Comparison], width: int) -> RenderedTable:
    wide = width >= WIDE
    rows = [c.row.base for c in comparisons]
    metric = comparisons[0].metric
    new = [metric.text(c.new) or "N/A" if wide or metric.more else "" for c in comparisons]
    columns: list[Column] = [
        ("size", "right", [format_size(r.nbytes) for r in rows]),
        ("algorithm", "left", [r.algorithm for r in rows]),
        ("base", "right", [metric.text(c.base) or "N/A" for c in comparisons]),
        ("new", "right", new),
        ("change", "right", [format_change(c.change) for c in comparisons]),
        ("95 %", "right", [bounds_text(c) for c in comparisons]),
        ("p", "right", [format_digits(c.p, ".2g") if wide else "" for c in comparisons]),
        ("effect", "right", [format_digits(c.effect, "+.2f") if wide else "" for c in comparisons]),
        *beside(comparisons),
        ("NEW is", "left", [c.word for c in comparisons]),
    ]
    what = f"{metric.name} in {metric.unit}" if metric.unit else metric.name
    return render_rich(f"{name}: {what} of NEW against BASE", columns)


def beside(comparisons: Sequence[Comparison]) -> list[Column]:
    """The other quantities of both sides, as ``base -> new``: a column each that a side has."""
    rows = [row for c in comparisons for row in (c.row.base, c.row.new)]
    return [
        (
            f"{metric.name} {metric.unit}".rstrip(),
            "right",
            [
                f"{metric.text(metric.of(c.row.base)) or 'N/A'} -> "
                f"{metric.text(metric.of(c.row.new)) or 'N/A'}"
                for c in comparisons
            ],
        )
        for metric in present(rows, BESIDE)
        if metric is not comparisons[0].metric
    ]


def counts_of(comparisons: Sequence[Comparison]) -> str:
    """The number of rows of each word: ``2 slower, 30 indistinguishable``."""
    words = [c.word for c in comparisons]
    counts = ", ".join(f"{words.count(k)} {k}" for k in WORDS if k in words)
    return counts + ": one launch a side" * (CANNOT_TELL in words)


def remedy(comparisons: Sequence[Comparison]) -> str:
    """The commands that can tell what one launch a side cannot; empty where that is not so."""
    row = next((c.row.new for c in comparisons if c.word == CANNOT_TELL), None)
    if row is None:
        return ""
    door = "pt2pt" if row.collective in TESTS else row.collective
    # bench.step has no --launches.
    ours = row.run.format.startswith("busbar") and not row.collective.startswith(STEP)
    once = f"python -m bench.{door} --ranks {row.ranks} --launches 5" if ours else ""
    several = f"launch both several times ({once})" if once else "launch both several times"
    return (
        f"What differs from launch to launch is in no iteration of one: {several} and compare"
        " a*.jsonl -- b*.jsonl, or have them take turns: python -m bench.ab -- A -- B"
    )


def resolution(comparisons: Sequence[Comparison]) -> str:
    """The differences that indistinguishable rows may hide, and how many launches would tell.

    Empty where there are none, or where how launches differ is not known.
    """
    least = [
        (scatter, min(len(c.row.base_runs), len(c.row.new_runs)))
        for c in comparisons
        if c.word == "indistinguishable" and (scatter := c.scatter) is not None
    ]
    fewest = min((launches for _, launches in least), default=0)
    if fewest < 2:
        return ""
    hidden = [least_seen(scatter, launches) for scatter, launches in least]
    small, large = (f"{100 * share:.2g}" for share in (min(hidden), max(hidden)))
    below = f"{large} %" if small == large else f"{small} to {large} %, by the row"
    text = f"Indistinguishable: {fewest} launches a side do not see a difference below {below}"
    if max(hidden) <= _ASKED:
        return f"{text}."
    would = launches_to_see(max(scatter for scatter, _ in least), _ASKED)
    many = "more than 1000" if would is None else str(would)
    return f"{text}; {many} a side would see {100 * _ASKED:g} % in every row."


def clocks(comparisons: Sequence[Comparison]) -> str:
    """By how much the cores of NEW ran at another clock; empty where all ran alike, or unknown."""
    changes = [b / a - 1 for c in comparisons if c.row.clocks for a, b in (c.row.clocks,)]
    apart = [one for one in changes if abs(one) >= _CLOCKS]
    if not apart:
        return ""
    low, high = (f"{100 * one:+.1f}" for one in (min(apart), max(apart)))
    by = f"{low} %" if low == high else f"{low} to {high} %"
    return (
        f"Core clocks differ in {len(apart)} of {len(changes)} rows, NEW's by {by}: what is bound"
        " by the core takes as much longer or shorter. More launches in turns even it out."
    )


def bounds_text(c: Comparison) -> str:
    """The interval of a change in per cent; empty when nothing could be tested."""
    if c.bounds is None:
        return ""
    return " ".join(f"{100 * (end - 1):+.1f}" for end in c.bounds)
