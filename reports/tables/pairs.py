"""The table at the end of tests between pairs of ranks, in OSU's and IMB's units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from busbar.tables import Column, render_lines
from busbar.units import format_digits
from reports.records.measurement import Measurement
from reports.statistics.quantities import bandwidths, center

__all__ = ["TESTS", "pairs"]

#: The tests, and what their cells are.
TESTS: Mapping[str, str] = {
    "latency": "us, one way",
    "bandwidth": "MB/s of all pairs (messages/s)",
    "bidirectional_bandwidth": "MB/s of all pairs, both ways (messages/s)",
}
_SIZE = 10


def pairs(rows: Sequence[Measurement], statistic: str = "median") -> list[str]:
    """The closing lines of one test's rows: a line a size, a column a way to move bytes.

    MB are 10^6 bytes. Empty where nothing was timed.
    """
    cells: dict[int, dict[str, str]] = {}
    for one in rows:
        seconds = center(one, statistic) if one.placement == "out" else None
        if seconds:
            cells.setdefault(one.size or 0, {})[one.algorithm] = _cell(one, seconds)
    if not cells:
        return []
    names = list(dict.fromkeys(name for row in cells.values() for name in row))
    test, ranks = rows[0].collective, rows[0].ranks
    lines = [
        "#",
        f"# {test}, {TESTS[test]}; {statistic}, {ranks} ranks over {rows[0].transport}",
    ]
    columns: list[Column] = [("size", "right", list(map(str, cells)))]
    columns += [(name, "right", [row.get(name, "N/A") for row in cells.values()]) for name in names]
    return lines + [f"# {line}" for line in render_lines(columns, (_SIZE,))]


def _cell(one: Measurement, seconds: float) -> str:
    if one.collective == "latency":
        return format_digits(seconds * 1e6)
    rate = bandwidths(one, seconds)[1]
    return f"{format_digits(rate / 1e6)} ({format_digits(rate / (one.size or 1))})"
