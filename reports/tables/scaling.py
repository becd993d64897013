"""Scaling tables: speed-up and efficiency against a named base. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from busbar.errors import ReportError
from busbar.tables import Column, RenderedTable, render_rich
from busbar.units import format_rate, format_seconds, format_size
from reports.analysis.compare import row_key, samples
from reports.records.measurement import Measurement
from reports.records.shown import setting
from reports.statistics.inference import ratio_interval
from reports.statistics.quantities import efficiency, speedup


@dataclass(frozen=True)
class Scaled:
    """A row against the base of its series, the least number of ranks; see docs/measuring.md.

    ``size`` in nccl-tests' sense is the buffer of every rank, so n ranks have a throughput of
    n x algbw. ``speedup`` is that over the base's, ``efficiency`` the same for each rank: t(1) /
    t(n) where the base has one rank. ``low``, ``high``: its bootstrap interval, None without raw
    times.
    """

    row: Measurement
    base: Measurement
    speedup: float
    efficiency: float
    low: float | None
    high: float | None


def scaling(rows: Sequence[Measurement]) -> list[list[Scaled]]:
    """A series for all rows that differ in nothing but the number of ranks, two of them at least.

    Raises ReportError when there is none.
    """
    series: dict[object, dict[int, list[Measurement]]] = {}
    for r in rows:
        if r.ranks and r.size and r.time_s:
            key = row_key(replace(r, ranks=None))
            series.setdefault(key, {}).setdefault(r.ranks, []).append(r)
    groups = [
        [_scaled(rows, by_ranks[min(by_ranks)]) for _, rows in sorted(by_ranks.items())]
        for by_ranks in series.values()
        if len(by_ranks) > 1
    ]
    if not groups:
        raise ReportError("no two rows differ in their number of ranks alone; give runs of several")
    return groups


def _scaled(rows: Sequence[Measurement], base: Sequence[Measurement]) -> Scaled:
    row, first = rows[0], base[0]
    n, b = float(row.ranks or 1), float(first.ranks or 1)
    # Throughputs in sizes per second; the size is the same and cancels.
    one, all_ = b / (first.time_s or 0.0), n / (row.time_s or 0.0)
    each = efficiency(one / b, all_, n)
    bounds = None if rows is base else ratio_interval(samples(rows), samples(base))
    low, high = bounds or (None, None)
    return Scaled(row, first, speedup(one, all_), each, low, high)


def scaling_tables(every: Sequence[Sequence[Scaled]], width: int) -> list[RenderedTable]:
    """A table a measured thing and placement; the base case stands in the heading.

    Below some 90 columns busbw makes room for the names of algorithms.
    """
    groups: dict[str, list[Scaled]] = {}
    for series in every:
        least = series[0].row
        name = setting(replace(least, ranks=None))
        ranks = "1 rank" if least.ranks == 1 else f"{least.ranks} ranks"
        groups.setdefault(f"{name}; base of speed-up and efficiency: {ranks}", []).extend(series)
    return [_table(name, group, width) for name, group in groups.items()]


def _table(name: str, group: Sequence[Scaled], width: int) -> RenderedTable:
    rows = [s.row for s in group]
    bounds = [_bounds(s) for s in group]
    columns: list[Column] = [
        ("size", "right", [format_size(r.size) for r in rows]),
        ("algorithm", "left", [r.algorithm for r in rows]),
        ("ranks", "right", [str(r.ranks) for r in rows]),
        ("time", "right", [format_seconds(r.time_s) for r in rows]),
        ("busbw", "right", [format_rate(r.busbw_bytes_per_s) for r in rows]),
        ("speed-up", "right", [f"{s.speedup:.3g}" for s in group]),
        ("efficiency", "right", [f"{100 * s.efficiency:.1f}%" for s in group]),
        ("95 %", "right", bounds),
    ]
    return render_rich(name, columns, width, ("busbw",))


def _bounds(s: Scaled) -> str:
    """The interval of the efficiency; tenths of a per cent where whole ones say nothing."""
    if s.low is None or s.high is None:
        return ""
    digits = 1 if s.high < 0.1 else 0
    return f"{100 * s.low:.{digits}f} to {100 * s.high:.{digits}f}%"
