"""The table at the end of tests between pairs of ranks, in OSU's and IMB's units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.records.record import Result
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


def pairs(results: Sequence[Result], statistic: str = "median") -> list[str]:
    """The closing lines of one test's results: a line a size, a column a way to move bytes.

    MB are 10^6 bytes. Empty where nothing was timed.
    """
    found: dict[int, dict[str, str]] = {}
    for one in results:
        seconds = None if one.out is None else center(one.out, statistic)
        if seconds:
            found.setdefault(one.size, {})[one.algorithm] = _cell(one, seconds)
    if not found:
        return []
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    widths = [max(len(name), *(len(row.get(name, "")) for row in found.values())) for name in names]
    test, ranks = results[0].collective, results[0].ranks
    lines = [
        "#",
        f"# {test}, {TESTS[test]}; {statistic}, {ranks} ranks over {results[0].transport}",
    ]
    cells = [f"{name:>{width}}" for name, width in zip(names, widths, strict=True)]
    lines.append(f"# {'size':>{_SIZE}}  " + "  ".join(cells))
    for size, row in found.items():
        cells = [
            f"{row.get(name, 'N/A'):>{width}}" for name, width in zip(names, widths, strict=True)
        ]
        lines.append(f"# {size:>{_SIZE}}  " + "  ".join(cells))
    return lines


def _cell(one: Result, seconds: float) -> str:
    if one.collective == "latency":
        return digits(seconds * 1e6)
    rate = bandwidths(one, seconds)[1]
    return f"{digits(rate / 1e6)} ({digits(rate / one.size)})"
