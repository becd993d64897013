"""The closing table of a run: algorithms side by side, against the library, and bytes moved.

All lines are comments in the sense of nccl-tests' table, so that what parses it goes on parsing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10

from reports.records.gpus import energy, memory_clock
from reports.records.record import Result, Sample
from reports.statistics.order import bandwidths, center

_TITLES = {"out": "out-of-place", "in": "in-place"}
_EDGE = len("# ") + 12  # what stands left of the cells: the size


def summary(results: Sequence[Result], statistic: str = "median", width: int = 80) -> list[str]:
    """The closing lines for one run's results, at most ``width`` characters wide if possible."""
    lines: list[str] = []
    for group in dict.fromkeys((r.dtype, r.op, r.root) for r in results):
        for placement in ("out", "in"):
            mine = [r for r in results if (r.dtype, r.op, r.root) == group]
            for grid in _grids(mine, placement, statistic):
                lines += _drawn(grid, width)
    return lines + _volumes(results)


@dataclass(frozen=True)
class _Grid:
    """A table: a line a size, a column a name."""

    title: str
    columns: dict[str, int]
    lines: dict[int, dict[str, str]]


def _grids(results: Sequence[Result], placement: str, statistic: str) -> Iterator[_Grid]:
    """The tables of one placement; those that nothing is known for are left out."""
    found: dict[int, dict[str, Result]] = {}
    for r in results:
        if _seconds(r, placement, statistic) is not None:
            found.setdefault(r.size, {})[r.algorithm] = r
    if not found:
        return
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    if "library" in names:
        names = ["library", *(n for n in names if n != "library")]
    head = f"{results[0].collective} {_TITLES[placement]} {results[0].dtype} {results[0].op}"
    head += f" root {results[0].root}" if results[0].root >= 0 else ""

    def grid(what: str, widths: dict[str, int], cell: Callable[[Result], str | None]) -> _Grid:
        lines = {
            size: {name: text for name, r in row.items() if (text := cell(r)) is not None}
            for size, row in found.items()
        }
        return _Grid(f"{head}, {what}", widths, {size: row for size, row in lines.items() if row})

    unit = "busbw in GB/s" if any(found) else "time in us"
    against = "; (x): against library" if "library" in names else ""
    widths = {name: max(len(name), 7 if name == "library" else 15) for name in names}
    yield grid(unit + against, widths, lambda r: _rate(r, found[r.size], placement, statistic))
    narrow = {name: max(len(name), 7) for name in names}
    for what, cell in (
        ("% of the limit that memory sets", _of_limit),
        ("J per operation, idle taken off", _joules),
        ("memory clock in MHz", _clock),
    ):
        yield grid(what, narrow, lambda r, cell=cell: cell(r, placement, statistic))  # type: ignore[misc]


def _sample(result: Result, placement: str) -> Sample:
    sample = result.sample(placement)
    assert sample is not None, "only results that have the placement come here"
    return sample


def _seconds(result: Result | None, placement: str, statistic: str) -> float | None:
    sample = None if result is None else result.sample(placement)
    return None if sample is None else center(sample, statistic)


def _rate(result: Result, row: dict[str, Result], placement: str, statistic: str) -> str | None:
    seconds = _seconds(result, placement, statistic) or 0.0
    # Where nothing is moved, as in a barrier, time is all there is to tell.
    figure = bandwidths(result, seconds)[1] / 1e9 if result.size else seconds * 1e6
    base = _seconds(row.get("library"), placement, statistic)
    ratio = "" if base is None or result.algorithm == "library" else f" ({_short(base / seconds)}x)"
    return _short(figure) + ratio


def _of_limit(result: Result, placement: str, statistic: str) -> str | None:
    limit = _sample(result, placement).limit
    seconds = _seconds(result, placement, statistic)
    return None if limit is None or not seconds else f"{100 * limit / seconds:.0f}"


def _joules(result: Result, placement: str, _: str) -> str | None:
    found = energy(result.gpus, placement)
    return None if found is None else _short(found)


def _clock(result: Result, placement: str, _: str) -> str | None:
    found = memory_clock(result.gpus, placement)
    return None if found is None else f"{found / 1e6:.0f}"


def _short(value: float) -> str:
    """Three significant digits in at most seven characters; below 0.001, two."""
    if value < 0.001:
        return f"{value:.1e}" if value > 0 else "0.00"
    return f"{value:.{max(0, 2 - floor(log10(value)))}f}"


def _drawn(grid: _Grid, width: int) -> list[str]:
    if not grid.lines:
        return []
    lines, names = ["#", f"# {grid.title}"], list(grid.columns)
    while names:
        shown, names = _fitting(names, grid.columns, width - _EDGE)
        lines.append(f"# {'size':>12}" + "".join(f"  {n:>{grid.columns[n]}}" for n in shown))
        for size, row in grid.lines.items():
            texts = (f"  {row.get(n, 'N/A'):>{grid.columns[n]}}" for n in shown)
            lines.append(f"# {size:>12}" + "".join(texts))
    return lines


def _fitting(names: list[str], columns: dict[str, int], width: int) -> tuple[list[str], list[str]]:
    """As many columns as fit, at least one, and the rest."""
    used = 0
    for i, name in enumerate(names):
        used += columns[name] + 2
        if used > width and i:
            return names[:i], names[i:]
    return names, []


def _volumes(results: Sequence[Result]) -> list[str]:
    """What each algorithm moved at its largest size, in units of that size."""
    largest: dict[str, Result] = {}
    for r in results:
        known = largest.get(r.algorithm)
        if known is None or r.size >= known.size:
            largest[r.algorithm] = r
    lines = []
    for name, r in largest.items():
        sample = next((s for s in (r.out, r.in_place) if s is not None and s.times), None)
        if sample is None or sample.sent is None or not r.size:
            continue
        out, into = sample.sent / r.size, (sample.received or 0) / r.size
        total = (sample.total or 0) / r.size
        lines.append(f"# {name:>24} {out:>14.4f} {into:>14.4f} {total:>14.4f}")
    if not lines:
        return []
    head = f"# {'':>24} {'busiest out':>14} {'busiest in':>14} {'all links':>14}"
    return [
        "#",
        f"# {results[0].collective}: bytes moved per iteration, as counted, in units of the size",
        head,
        *lines,
    ]
