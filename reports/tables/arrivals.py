"""The table at the end of ``--arrival all``: the fastest algorithm under each pattern.

A time is from the last rank's arrival to the latest end, also where no rank was late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from busbar.statistics import interval
from busbar.tables import Column, render_lines
from busbar.units import format_seconds
from reports.records.measurement import LAST, Measurement
from reports.records.shown import PLACEMENT

_EDGE = 12

Times = Mapping[str, Mapping[str, tuple[float, ...]]]
"""Seconds of iterations by pattern and algorithm."""


def arrivals_table(rows: Sequence[Measurement]) -> list[str]:
    """The lines, comments of nccl-tests' table; none where there was one pattern only."""
    lines: list[str] = []
    for thing in dict.fromkeys((r.collective, r.dtype, r.op, r.root) for r in rows):
        mine = [r for r in rows if (r.collective, r.dtype, r.op, r.root) == thing]
        for placement, title in PLACEMENT.items():
            placed = [r for r in mine if r.placement == placement]
            blocks = [
                block
                for size in sorted({r.size or 0 for r in placed})
                if (block := _block([r for r in placed if r.size == size], size))
            ]
            if blocks:
                collective, dtype, op, root = thing
                words = [
                    collective,
                    title,
                    dtype,
                    op,
                    *([f"root {root}"] if root is not None and root >= 0 else []),
                ]
                lines += ["#", f"# {' '.join(words)}, time from the last arrival; *: the fastest,"]
                lines += ["# ~: another may be as fast (95 %)"]
                lines += [line for block in blocks for line in block]
    return lines


def _block(rows: Sequence[Measurement], size: int) -> list[str]:
    """A size: a line an algorithm, a column a pattern, and where the winner changes."""
    times: dict[str, dict[str, tuple[float, ...]]] = {}
    heads: dict[str, str] = {}
    for r in rows:
        if not r.times_s or r.window is None or not r.window.pattern:
            continue
        pattern = r.window.pattern
        heads[pattern] = r.window.arrival or pattern
        times.setdefault(pattern, {})[r.algorithm] = r.also.get(LAST, r.times_s)
    if len(times) < 2:
        return []
    names = list(dict.fromkeys(name for by in times.values() for name in by))
    columns: list[Column] = [(str(size), "right", names)]
    columns += [
        (head, "right", [_cell(times[pattern], name) for name in names])
        for pattern, head in heads.items()
    ]
    lines = render_lines(columns, [_EDGE] * len(columns))
    return [*(f"# {line}" for line in lines), *_changes(times, size)]


def _cell(by: Mapping[str, tuple[float, ...]], name: str) -> str:
    if name not in by:
        return "N/A"
    mark = "" if name != _winner(by) else "*" if _sure(by) else "~"
    return format_seconds(median(by[name])) + (mark or " ")


def _winner(by: Mapping[str, tuple[float, ...]]) -> str:
    return min(by, key=lambda name: (median(by[name]), name))


def _sure(by: Mapping[str, tuple[float, ...]]) -> bool:
    """Whether the fastest's interval ends before that of any other begins."""
    first = _winner(by)
    mine = interval(by[first])
    others = [interval(times) for name, times in by.items() if name != first]
    return mine is not None and all(one is not None and mine[1] < one[0] for one in others)


def _changes(times: Times, size: int) -> list[str]:
    """A line that says where another wins than without delays, and surely so."""
    zero = times.get("zero")
    if zero is None or not _sure(zero):
        return []
    usual = _winner(zero)
    winner = {pattern: _winner(by) for pattern, by in times.items() if _sure(by)}
    other = [f"{name} under {pattern}" for pattern, name in winner.items() if name != usual]
    return [f"# {size} B: {usual} when all arrive at once, {', '.join(other)}"] if other else []
