"""A history for the terminal and as CSV: a line for each series, then the changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from busbar.tables import WIDE, Column, RenderedTable, draw_trend, render_csv, render_rich
from busbar.units import format_change, format_interval, format_p_value, format_size
from reports.analysis.history import History, HistoryEvent, Series, events
from reports.records.measurement import grouped
from reports.records.metrics import BANDWIDTH, MESSAGE_RATE, TIME
from reports.records.shown import named, setting

_MOST_NAMED = 3


def history_tables(h: History, width: int, ascii_only: bool = False) -> list[RenderedTable]:
    """A table a measured thing: the latest time, the latest change, the course of the medians.

    In the course ``|`` stands where a change was found, and ``!`` behind it for last runs that are
    out of the ordinary.
    """
    groups = grouped(h.series, lambda s: (setting(s.row), s.metric))
    return [_table(name, group, width, ascii_only) for (name, _), group in groups.items()]


def _table(name: str, group: Sequence[Series], width: int, ascii_only: bool) -> RenderedTable:
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


def _change(s: Series) -> str:
    """The latest change, where there is one."""
    return format_change(s.change(s.cuts[-1].ratio)) if s.cuts else ""


def _course(s: Series, room: int, ascii_only: bool) -> str:
    """The last points that there is room for."""
    left_out = max(0, len(s.points) - room)
    values = [s.metric.of_cost(p.value) or 0.0 for p in s.points[left_out:]]
    at = [cut.at - left_out for cut in s.cuts]
    return draw_trend(values, at, ascii_only) + ("!" if s.alarm is not None else "")


def event_lines(h: History) -> list[str]:
    """A paragraph an event: the run, how many rows, by how much, what else differs."""
    return [_told(h, event) for event in events(h)]


def _told(h: History, event: HistoryEvent) -> str:
    ratios = [ratio for _, ratio, _ in event.changes]
    words = []
    for word, mine in (
        ("slower", [r for r in ratios if r > 1]),
        ("faster", [r for r in ratios if r <= 1]),
    ):
        if mine:
            low, high = format_change(min(mine)), format_change(max(mine))
            by = (
                low if low == high else f"{format_change(float(np.median(mine)))} ({low} to {high})"
            )
            words.append(f"{len(mine)} of {len(h.series)} rows {word} by {by}".replace("-", ""))
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


_COLUMNS = (
    "collective", "algorithm", "transport", "ranks", "size", "dtype", "op", "root", "placement",
    "run", "name", "time_s", "low_s", "high_s", "iterations", "level", "p",
    "bandwidth_bytes_per_s", "messages_per_s",
)  # fmt: skip


def history_csv(h: History) -> str:
    """All points: what was measured, the run, its figures, and which level it belongs to.

    ``level`` counts from 0 and rises with each change; ``p`` is that of the change which began it.
    """
    lines: list[tuple[object, ...]] = [_COLUMNS]
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
