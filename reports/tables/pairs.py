"""The table at the end of tests between pairs of ranks, in OSU's and IMB's units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.records.measurement import Measurement
from reports.records.shown import digits
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
    found: dict[int, dict[str, str]] = {}
    for one in rows:
        seconds = center(one, statistic) if one.placement == "out" else None
        if seconds:
            found.setdefault(one.size or 0, {})[one.algorithm] = _cell(one, seconds)
    if not found:
        return []
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    widths = [max(len(name), *(len(row.get(name, "")) for row in found.values())) for name in names]
    test, ranks = rows[0].collective, rows[0].ranks
    lines = [
        "#",
        f"# {test}, {TESTS[test]}; {statistic}, {ranks} ranks over {rows[0].transport}",
    ]
    cells = [f"{name:>{width}}" for name, width in zip(names, widths, strict=True)]
    lines.append(f"# {'size':>{_SIZE}}  " + "  ".join(cells))
    for size, row in found.items():
        cells = [
            f"{row.get(name, 'N/A'):>{width}}" for name, width in zip(names, widths, strict=True)
        ]
        lines.append(f"# {size:>{_SIZE}}  " + "  ".join(cells))
    return lines


def _cell(one: Measurement, seconds: float) -> str:
    if one.collective == "latency":
        return digits(seconds * 1e6)
    rate = bandwidths(one, seconds)[1]
    return f"{digits(rate / 1e6)} ({digits(rate / (one.size or 1))})"
