"""Comparisons and histories for a terminal and as CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, log
from typing import Any

import numpy as np

from busbar.tables import WIDE, Column, RenderedTable, draw_trend, render_csv, render_rich
from busbar.units import (
    OPEN,
    format_change,
    format_change_interval,
    format_count,
    format_digits,
    format_interval,
    format_p_value,
    format_part,
    format_size,
    format_size_range,
)
from reports.analysis.cautions import command_of
from reports.analysis.compare import CANNOT_TELL, IGNORED, UNTESTED, WORDS, Comparison, Difference
from reports.analysis.history import History, HistoryEvent, Series, events
from reports.analysis.winners import LAUNCHES
from reports.records.measurement import LIBRARY, Measurement, grouped
from reports.records.metrics import BANDWIDTH, BESIDE, MESSAGE_RATE, TIME, named, present, setting
from reports.statistics.inference import launches_to_see, least_seen
from reports.statistics.quantities import is_mean_of_parts

_CLOCKS = 0.01  # least relative difference of clocks that is reported
# Columns to leave out if there is no room, in this order: the verdict is never cut.
_SPARE = ("effect", "p", "95 %", "change")
_FACTOR = "a factor of "
_TOLD = ("slower", "faster")  # the verdicts that a change of the machine may look like
_IN_SEQUENCE = "launched one after the other"
_ASKED = 0.05  # the relative difference for which the number of launches is reported


def comparison_tables(comparisons: Sequence[Comparison], width: int) -> list[RenderedTable]:
    """A comparison as tables: one for each setting and metric."""
    groups = grouped(comparisons, lambda c: (setting(c.row.base), c.metric))
    return [_compared(name, group, width) for (name, _), group in groups.items()]


def _compared(name: str, comparisons: Sequence[Comparison], width: int) -> RenderedTable:
    wide = width >= WIDE
    rows = [c.row.base for c in comparisons]
    metric = comparisons[0].metric
    new = [metric.text(c.new) or "N/A" for c in comparisons]
    columns: list[Column] = [
        ("size", "right", [format_size(r.nbytes) for r in rows]),
        ("algorithm", "left", [c.row.algorithm for c in comparisons]),
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
    shown = render_rich(f"{name}: {what} of NEW against BASE", columns, width, _SPARE)
    notes = filter(None, [shown.footnote, _statistics(comparisons)])
    return replace(shown, footnote="; ".join(notes))


def _statistics(comparisons: Sequence[Comparison]) -> str:
    """What base and new are where `reports show` has another figure of the same file; or empty."""
    texts = []
    if any(len(side) > 1 for c in comparisons for side in c.row.sides):
        texts.append("the geometric mean of the launches' medians")
    if means := [c.row.algorithm for c in comparisons if is_mean_of_parts(c.row.base)]:
        texts.append(f"of {', '.join(means)} the median of parts, in reports show the mean")
    return f"base, new: {'; '.join(texts)}" if texts else ""


def beside(comparisons: Sequence[Comparison]) -> list[Column]:
    """A column ``base -> new`` for each quantity that some row has beside the compared one."""
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


def comparison_document(
    comparisons: Sequence[Comparison], differing: Sequence[Difference]
) -> dict[str, Any]:
    """A comparison for JSON: a verdict with its figures for each row, and how the runs differ.

    ``ratio`` is NEW's cost over BASE's: above 1, NEW is slower, also if a rate was compared.
    """
    return {
        "comparisons": [
            {
                **_settings(c.row.base),
                **{f"new_{name}": getattr(c.row.new, name) for name in IGNORED},
                "metric": c.metric.name,
                "base": c.base,
                "new": c.new,
                "ratio": c.ratio,
                "low": c.low,
                "high": c.high,
                "p": c.p,
                "effect": c.effect,
                "verdict": c.word,
                "launches": [len(c.row.base_runs), len(c.row.new_runs)],
            }
            for c in comparisons
        ],
        "differences": list(map(str, differing)),
    }


def _settings(row: Measurement) -> dict[str, Any]:
    names = ("collective", "algorithm", "transport", "ranks", "dtype", "op", "root", "placement")
    return {"size": row.nbytes, **{name: getattr(row, name) for name in names}}


def counts_of(comparisons: Sequence[Comparison]) -> str:
    """The number of rows with each verdict, as ``2 slower, 30 indistinguishable``."""
    return _counts(comparisons, lambda word, rows: "")


def verdict(comparisons: Sequence[Comparison]) -> str:
    """The line that ends a comparison: the numbers of verdicts, with the largest changes.

    Also the largest change if no row could be tested, so that it is not hidden; and that the sides
    were not launched in turns (see `order`).
    """
    texts = [_counts(comparisons, _largest)]
    if all(c.word == UNTESTED for c in comparisons):
        texts.append(f"largest change {_extreme(comparisons)}")
    texts += [_IN_SEQUENCE] * _in_sequence(comparisons)
    texts += filter(None, [library_too(comparisons)])
    return f"NEW against BASE: {'; '.join(texts)}"


def _largest(word: str, rows: Sequence[Comparison]) -> str:
    """In parentheses the slowest of slower rows, or the fastest of faster ones, and its change."""
    if word not in _TOLD:
        return ""
    return f" ({'most: ' * (len(rows) > 1)}{_extreme(rows)})"


def _extreme(rows: Sequence[Comparison]) -> str:
    """The row with the largest change, and the change."""
    largest = max(rows, key=lambda c: abs(log(c.ratio)) if c.ratio > 0 else inf)
    return f"{named(largest.row.base)} {format_change(largest.change)}"


def _counts(
    comparisons: Sequence[Comparison], more: Callable[[str, Sequence[Comparison]], str]
) -> str:
    """As `counts_of`; ``more``: what follows a verdict, of the verdict and its rows."""
    by_word = grouped(comparisons, lambda c: c.word)
    counts = ", ".join(f"{len(by_word[k])} {k}{more(k, by_word[k])}" for k in WORDS if k in by_word)
    tested = sum(c.p is not None for c in comparisons)
    reasons = (_why_untold(c, tested) for c in comparisons if c.word in (CANNOT_TELL, UNTESTED))
    return ": ".join(filter(None, (counts, ", ".join(dict.fromkeys(reasons)))))


def _why_untold(c: Comparison, tested: int) -> str:
    """Why no verdict on a row is possible, one of ``tested`` rows."""
    fewest, most = sorted(map(len, c.row.sides))
    if fewest == 1:
        if most > 1 and c.row.moved:
            side = "BASE" if len(c.row.base_runs) == 1 else "NEW"
            return f"one launch of {side} ran beside other programs"
        return "one launch a side" if most == 1 else "one launch on a side"
    if not c.apart:
        return "the interval reaches a factor of 2"
    if c.few:
        return f"{fewest} launches a side are too few for a test"
    return f"the interval lies on one side of 0 %, but among {tested} rows that may be chance"


def unjudged(comparisons: Sequence[Comparison]) -> str:
    """How many rows without a verdict look slower or faster by over 5 %, and at which sizes.

    Empty if every row has a verdict.
    """
    rows = [c for c in comparisons if c.word in (CANNOT_TELL, UNTESTED)]
    if not rows:
        return ""
    slow = [c for c in rows if c.ratio > 1 + _ASKED]
    fast = [c for c in rows if c.ratio < 1 / (1 + _ASKED)]
    parts = (_looks(some, word) for some, word in ((slow, "slower"), (fast, "faster")))
    return f"Without a verdict: {'; '.join(parts)}."


def _looks(rows: Sequence[Comparison], word: str) -> str:
    """``28 rows over 5 % slower, from 1M to 8G``."""
    by = f"over {100 * _ASKED:g} % {word}"
    if not rows:
        return f"none {by}"
    sizes = [c.row.base.nbytes or 0 for c in rows]
    where = format_size_range(min(sizes), max(sizes))
    return f"{format_count(len(rows), 'row')} {by}, {where}"


def remedy(comparisons: Sequence[Comparison], calls: bool = False) -> str:
    """Advice to measure more launches; empty if every row has a verdict.

    ``calls``: for Python, where calls give the rows, in place of files. The command to launch
    follows a line break, and a sentence on taking turns another, unless `order` has it.
    """
    untold = [c for c in comparisons if c.word == CANNOT_TELL]
    if not untold:
        return ""
    rows = [c.row.new for c in comparisons]
    command = command_of(rows, without=("--launches",))
    fewest = min(len(side) for c in untold for side in c.row.sides)
    launches = max(LAUNCHES, 2 * fewest)
    once = command and f":\n{command} --launches {launches}{'' if calls else ' --out FILE.jsonl'}"
    why = "One launch cannot tell, since launches differ: launch each side several times"
    if any(c.row.of_one_launch for c in untold):
        why = (
            "Algorithms of one launch are compared within it by its answer; this comparison asks"
            f" about launches. {why}"
        )
    if fewest > 1:
        why = (
            f"{fewest} launches a side do not tell every difference from chance: launch more often"
        )
    turns = "" if order(comparisons) else "\nThe command busbar ab has both sides take turns."
    if command and rows[0].step is not None and not calls:  # the command has no launches of its own
        once = f", with --out FILE of its own, and compare a*.jsonl -- b*.jsonl:\n{command}"
    elif command and rows[0].step is not None:
        once = f", with launches={launches}:\n{command}"
    return f"{why}{once}{turns}"


def asides(comparisons: Sequence[Comparison], calls: bool = False) -> list[str]:
    """The texts below a comparison without which its verdicts may be misread, none of them empty.

    ``calls``: see `remedy`.
    """
    texts = (remedy(comparisons, calls), *(tell(comparisons) for tell in (order, resolution)))
    return list(filter(None, texts))


def order(comparisons: Sequence[Comparison]) -> str:
    """That a verdict may be of the machine, which changed between the sides; empty if in turns."""
    if not _in_sequence(comparisons):
        return ""
    also = library_too(comparisons)
    return (
        f"BASE and NEW were {_IN_SEQUENCE}: a change of the machine in between looks"
        f" the same{also and f', and {also}'}. busbar ab launches both in turns."
    )


def _in_sequence(comparisons: Sequence[Comparison]) -> bool:
    """True if a row has a verdict, and its sides were launched one after the other."""
    return any(c.row.in_sequence for c in comparisons if c.word in _TOLD)


def library_too(comparisons: Sequence[Comparison]) -> str:
    """That the library changed in the same direction as other algorithms; empty if it did not.

    Then a change of the machine is likely: a change of one algorithm is not one of the library. A
    direction is that of more than half of the rows of the library, and of the others, where the
    sides were launched one after the other.
    """
    by_kind = grouped(comparisons, lambda c: c.row.algorithm == LIBRARY)
    if len(by_kind) < 2 or not _in_sequence(comparisons):
        return ""
    for word in _TOLD:
        counts = {kind: sum(c.word == word for c in rows) for kind, rows in by_kind.items()}
        if all(2 * counts[kind] > len(rows) for kind, rows in by_kind.items()):
            part = f"{counts[True]} of {format_count(len(by_kind[True]), 'row')}"
            return f"{LIBRARY} is {word}, too, in {part}"
    return ""


def resolution(comparisons: Sequence[Comparison]) -> str:
    """The differences that indistinguishable rows may hide, and how many launches would show them.

    Empty without such rows, or if the scatter between launches is not known.
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
    small, large = (_least_seen_text(share) for share in (min(hidden), max(hidden)))
    if small != large and small.startswith(_FACTOR):
        large = large.removeprefix(_FACTOR)
    below = large if small == large else f"{small} to {large}, by the row"
    text = f"Indistinguishable: {fewest} launches a side do not see a difference below {below}"
    if max(hidden) <= _ASKED:
        return f"{text}."
    would = launches_to_see(max(scatter for scatter, _ in least), _ASKED)
    many = "more than 1000" if would is None else str(would)
    return f"{text}; {many} a side would see {100 * _ASKED:g} % in every row."


def _least_seen_text(share: float) -> str:
    """``2.5 %``, or from twice the time on ``a factor of 3.1``, at most `OPEN`."""
    if share < 0.995:
        return f"{100 * share:.2g} %"
    factor = min(1 + share, OPEN)
    return f"{_FACTOR}{factor:.{0 if factor >= 10 else 1}f}"


def warnings_by_side(base: Sequence[str], new: Sequence[str]) -> list[str]:
    """The warnings about BASE and NEW, each with its side or ``BASE and NEW``."""
    named = [("BASE", text) for text in base] + [("NEW", text) for text in new]
    return [
        f"{' and '.join(name for name, _ in whose)}: {warning}"
        for warning, whose in grouped(named, lambda one: one[1]).items()
    ]


def clocks(comparisons: Sequence[Comparison]) -> str:
    """By how much core clocks of NEW differ from BASE's; empty below 1 %, or if not known."""
    changes = [b / a - 1 for c in comparisons if c.row.clocks for a, b in (c.row.clocks,)]
    apart = [one for one in changes if abs(one) >= _CLOCKS]
    if not apart:
        return ""
    low, high = (f"{100 * one:+.1f}" for one in (min(apart), max(apart)))
    by = f"{low} %" if low == high else f"{low} to {high} %"
    return (
        f"Core clocks differ in {len(apart)} of {format_count(len(changes), 'row')}, NEW's by"
        f" {by}: what is bound by the core takes as much longer or shorter. More launches in turns"
        " even it out."
    )


def bounds_text(c: Comparison) -> str:
    """The interval of a change in the change's unit; empty if there is none, ``-`` if open."""
    return "" if c.bounds is None else format_change_interval(c.change, *c.bounds)


_MOST_NAMED = 3


def history_tables(h: History, width: int, ascii_only: bool = False) -> list[RenderedTable]:
    """A history as tables, one per setting: latest time, latest change, a trend of the medians.

    In the trend ``|`` marks a change. ``!`` at its end means that the last runs are unusual, but
    not yet a confirmed change.
    """
    groups = grouped(h.series, lambda s: (setting(s.row), s.metric))
    return [_series_table(name, group, width, ascii_only) for (name, _), group in groups.items()]


def _series_table(
    name: str, group: Sequence[Series], width: int, ascii_only: bool
) -> RenderedTable:
    wide = width >= WIDE
    room = 64 if wide else 24
    last, metric = [s.points[-1] for s in group], group[0].metric
    columns: list[Column] = [
        ("size", "right", [format_size(s.row.nbytes) for s in group]),
        ("algorithm", "left", [s.row.algorithm for s in group]),
        ("latest", "right", [metric.text(metric.of_cost(p.value)) for p in last]),
        ("95 %", "right", [format_interval(p.low, p.high, p.value) if wide else "" for p in last]),
        (
            "change",
            "right",
            [format_change(s.change(s.cuts[-1].ratio)) if s.cuts else "" for s in group],
        ),
        ("p", "right", [f"{s.cuts[-1].p:.2g}" if wide and s.cuts else "" for s in group]),
        ("runs", "right", [str(len(s.points)) for s in group]),
        ("median of each run", "left", [_course(s, room, ascii_only) for s in group]),
    ]
    return render_rich(f"{name}; {metric.name} in {metric.unit}" if metric.unit else name, columns)


def _course(s: Series, room: int, ascii_only: bool) -> str:
    """The trend of the last points, as many as ``room`` allows."""
    left_out = max(0, len(s.points) - room)
    values = [s.metric.of_cost(p.value) or 0.0 for p in s.points[left_out:]]
    at = [cut.at - left_out for cut in s.cuts]
    return draw_trend(values, at, ascii_only) + ("!" if s.alarm is not None else "")


def event_lines(h: History) -> list[str]:
    """One paragraph per event: the run, how many rows, by how much, what else differs."""
    return [_event_text(h, event) for event in events(h)]


def _event_text(h: History, event: HistoryEvent) -> str:
    # The verdict is on the cost, and the figure is of the quantity in the table, maybe a rate.
    changes = [(ratio > 1, s.change(ratio)) for s, ratio, _ in event.changes]
    words = []
    for word, mine in (
        ("slower", [change for slower, change in changes if slower]),
        ("faster", [change for slower, change in changes if not slower]),
    ):
        if mine:
            low, high = format_change(min(mine)), format_change(max(mine))
            by = (
                low if low == high else f"{format_change(float(np.median(mine)))} ({low} to {high})"
            )
            words.append(
                format_part(len(mine), len(h.series), "row", f"{word} by {by}".replace("-", ""))
            )
    names = [named(s.row) for s, _, _ in event.changes[:_MOST_NAMED]]
    more = len(event.changes) - len(names)
    which = ", ".join(names) + (f" and {more} more" if more else "")
    p = max(p for _, _, p in event.changes)
    head = "change with" if event.sure else "not yet confirmed, since"
    text = (
        f"{head} run {event.run + 1} ({h.runs[event.run]}): {'; '.join(words)}, "
        f"{format_p_value(p)}: {which}"
    )
    differing = h.differing.get(event.run, ())
    return text + "".join(f"\n  differs: {d}" for d in differing)


def history_document(h: History) -> dict[str, Any]:
    """A history for JSON: series with their points, changes and alarm, and how runs differ.

    Runs are numbered from 1. ``ratio`` is of costs: above 1, a row became slower.
    """
    return {
        "runs": list(h.runs),
        "series": [
            {
                **_settings(s.row),
                "metric": s.metric.name,
                "points": [
                    {
                        "run": point.run + 1,
                        "value": s.metric.of_cost(point.value),
                        "low_s": point.low,
                        "high_s": point.high,
                        "iterations": point.iterations,
                    }
                    for point in s.points
                ],
                "changes": [
                    {"run": s.points[cut.at].run + 1, "ratio": cut.ratio, "p": cut.p}
                    for cut in s.cuts
                ],
                "unconfirmed": s.alarm
                and {"runs": s.alarm.runs, "ratio": s.alarm.ratio, "p": s.alarm.p},
            }
            for s in h.series
        ],
        "differences": {str(run + 1): list(map(str, ds)) for run, ds in h.differing.items()},
    }


_CSV_COLUMNS = (
    "collective", "algorithm", "transport", "ranks", "size", "dtype", "op", "root", "placement",
    "run", "name", "time_s", "low_s", "high_s", "iterations", "level", "p",
    "bandwidth_bytes_per_s", "messages_per_s",
)  # fmt: skip


def history_csv(h: History) -> str:
    """All points of all series as CSV: the setting, the run, its figures, and the segment.

    ``level`` is the number of the segment between change points, from 0; ``p`` belongs to the
    change that began the segment.
    """
    lines: list[tuple[object, ...]] = [_CSV_COLUMNS]
    for s in h.series:
        r = s.row
        what = (r.collective, r.algorithm, r.transport, r.ranks, r.nbytes, r.dtype, r.op, r.root)
        for n, point in enumerate(s.points):
            begun = [cut for cut in s.cuts if cut.at <= n]
            values = [
                s.metric.of_cost(point.value) if s.metric is metric else None
                for metric in (TIME, BANDWIDTH, MESSAGE_RATE)
            ]
            figures = (values[0], point.low, point.high, point.iterations)
            p = begun[-1].p if begun else None
            place = (r.placement, point.run + 1, h.runs[point.run])
            lines.append((*what, *place, *figures, len(begun), p, *values[1:]))
    return render_csv(lines)
