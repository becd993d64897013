"""The closing table of a run: algorithms side by side, against the library, and bytes moved.

All lines are comments in the sense of nccl-tests' table, so that what parses it goes on parsing.
"""

from __future__ import annotations

from collections.abc import Sequence

from reports.record import Result
from reports.statistics import bandwidths, center

__all__ = ["summary"]

_TITLES = {"out": "out-of-place", "in": "in-place"}


def summary(results: Sequence[Result], statistic: str = "median", width: int = 80) -> list[str]:
    """The closing lines for one run's results, at most ``width`` characters wide where it can be."""
    lines: list[str] = []
    for group in dict.fromkeys((r.dtype, r.op) for r in results):
        for placement in ("out", "in"):
            mine = [r for r in results if (r.dtype, r.op) == group]
            lines += _bandwidths(mine, placement, statistic, width)
    return lines + _volumes(results)


def _seconds(result: Result | None, placement: str, statistic: str) -> float | None:
    sample = None if result is None else result.sample(placement)
    return None if sample is None else center(sample, statistic)


def _cell(result: Result | None, base: float | None, placement: str, statistic: str) -> str:
    seconds = _seconds(result, placement, statistic)
    if result is None or seconds is None:
        return "N/A"
    busbw = bandwidths(result, seconds)[1] / 1e9
    shown = f"{busbw:#.3g}" if busbw < 999.5 else f"{busbw:.0f}"
    return shown + ("" if base is None else f" ({base / seconds:.2f}x)")


def _bandwidths(results: Sequence[Result], placement: str, statistic: str, width: int) -> list[str]:
    found: dict[int, dict[str, Result]] = {}
    for r in results:
        if _seconds(r, placement, statistic) is not None:
            found.setdefault(r.size, {})[r.algorithm] = r
    if not found:
        return []
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    if "library" in names:
        names = ["library", *(n for n in names if n != "library")]
    against = "; (x): times as fast as library" if "library" in names else ""
    what = f"{results[0].dtype} {results[0].op}"
    lines = ["#", f"# {_TITLES[placement]} {what}, busbw in GB/s{against}"]
    while names:
        shown, names = _fitting(names, width - 14)
        lines.append(f"# {'size':>12}" + "".join(f"  {name:>{_wide(name)}}" for name in shown))
        for size, row in found.items():
            base = _seconds(row.get("library"), placement, statistic)
            cells = (
                _cell(row.get(n), None if n == "library" else base, placement, statistic)
                for n in shown
            )
            texts = (f"  {c:>{_wide(n)}}" for c, n in zip(cells, shown, strict=True))
            lines.append(f"# {size:>12}" + "".join(texts))
    return lines


def _wide(name: str) -> int:
    """The width of a column: a figure, its ratio where it has one, and its name."""
    return max(len(name), 7 if name == "library" else 13)


def _fitting(names: list[str], width: int) -> tuple[list[str], list[str]]:
    """As many columns as fit, at least one, and the rest."""
    used = 0
    for i, name in enumerate(names):
        used += _wide(name) + 2
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
        if sample is None or sample.sent is None:
            continue
        out, into = sample.sent / r.size, (sample.received or 0) / r.size
        total = (sample.total or 0) / r.size
        lines.append(f"# {name:>24} {out:>14.4f} {into:>14.4f} {total:>14.4f}")
    if not lines:
        return []
    head = f"# {'':>24} {'busiest out':>14} {'busiest in':>14} {'all links':>14}"
    return [
        "#",
        "# bytes moved per iteration, counted while running, in units of the size",
        head,
        *lines,
    ]
