"""The fastest algorithms by size and by ranks, and speed-up and efficiency against a named base.

No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from msgspec.structs import replace

from busbar.errors import ReportError
from busbar.tables import Column, RenderedTable, render_lines, render_rich, split_columns
from busbar.units import format_rate, format_seconds, format_size
from reports.analysis.answer import (
    HEADS,
    UNSURE,
    answers,
    cell,
    conclusions,
    counts,
    crossovers,
    head,
    sentence,
    server_and_ring,
    stretch_table,
)
from reports.analysis.compare import row_key, samples
from reports.analysis.winners import Cells, Stretch, decided, winners
from reports.records.cores import per_core_text
from reports.records.measurement import Measurement
from reports.records.metrics import setting
from reports.statistics.inference import ratio_interval
from reports.statistics.quantities import LATENCY_BOUND, efficiency, speedup


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
    return [_scaling_table(name, group, width) for name, group in groups.items()]


def _scaling_table(name: str, group: Sequence[Scaled], width: int) -> RenderedTable:
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


_GAP = "  "
_KEY = "~: the next may be as fast"


def answer(rows: Sequence[Measurement], width: int) -> list[str]:
    """`answers` in a few lines, ``width`` wide at most where names let them."""
    lines: list[str] = []
    for what, ranges in answers(rows).items():
        lines += [""] * bool(lines) + wrap(f"the fastest of {what}, by size", width)
        lines += [*_ranges(ranges, width), *_changes(ranges, width)]
        lines += wrap(sentence(ranges), width, subsequent_indent=_GAP)
    for text in server_and_ring(rows):
        lines += wrap(text, width, subsequent_indent=_GAP)
    return lines


def conclusion_lines(rows: Sequence[Measurement], width: int) -> list[str]:
    """`conclusions` as lines, ``width`` wide at most where names let them."""
    return [
        line for text in conclusions(rows) for line in wrap(text, width, subsequent_indent=_GAP)
    ]


def _ranges(ranges: Sequence[Stretch], width: int) -> list[str]:
    """A line a stretch under its heading; columns that no line needs are left out."""
    heads, rows = stretch_table(ranges)
    columns = list(zip(heads, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    if sum(widths) + len(_GAP) * len(widths) > width and columns[-1][0] == HEADS[-1]:
        columns, widths = columns[:-1], widths[:-1]
    return render_lines(
        (head, "left" if n else "right", cells) for n, (head, *cells) in enumerate(columns)
    )


def _changes(ranges: Sequence[Stretch], width: int) -> list[str]:
    """Lines on where the fastest changes, and on what a tilde means."""
    changes = crossovers(ranges)
    lines = wrap(f"crossovers: {changes}", width, subsequent_indent=_GAP) if changes else []
    return lines + [UNSURE] * any(not one.sure for one in ranges)


def winners_map(rows: Sequence[Measurement], width: int) -> list[list[str]]:
    """A block of lines for each measured thing with several rank counts, at most ``width`` wide.

    A cell stands on one line where there is room, else on two; where even that is too wide the rank
    counts go on in another block below.
    """
    crowded = {r.ranks: r.ranks_per_core for r in rows if r.ranks and r.oversubscribed}
    return [
        [
            *wrap(f"the fastest of {thing}, by size and ranks", width),
            *wrap(f"{_figure(cells)}, and how many times as long the next takes (95 %)", width),
            *wrap(_KEY + _shared(crowded), width),
            *_drawn(cells, {n: head(n, n in crowded) for n in counts(cells)}, width),
        ]
        for thing, cells in winners(rows).items()
        if len(counts(cells)) > 1
    ]


def _figure(cells: Cells) -> str:
    """The quantity that stands first in a cell: a barrier, which moves nothing, has no rate."""
    if all(w.latency_bound for w in cells.values()):
        return "time"
    few = format_size(LATENCY_BOUND)
    small = any(w.latency_bound for w in cells.values())
    return f"busbw in GB/s, below {few} the time" if small else "busbw in GB/s"


def _shared(crowded: Mapping[int, float | None]) -> str:
    text = per_core_text(crowded.values())
    return f"; *: oversubscribed ({text}), times include waiting for a core" if text else ""


def _drawn(cells: Cells, heads: Mapping[int, str], width: int) -> Iterator[str]:
    sizes = sorted({size for size, _ in cells})
    edge = max(len("size"), *(len(format_size(size)) for size in sizes))
    texts = {at: cell(name, winner) for at, (name, winner) in decided(cells).items()}
    columns = {n: {size: texts[size, n] for size in sizes if (size, n) in texts} for n in heads}
    joined: dict[int, _Column] = {n: _joined(column) for n, column in columns.items()}
    if _width(joined, heads) > width - edge:
        joined = dict(columns)
    wide = {n: _width({n: column}, heads) for n, column in joined.items()}
    for block in split_columns(wide, width - edge):
        widths = {n: wide[n] - len(_GAP) for n in block}
        yield _line("size".rjust(edge), ((heads[n], widths[n]) for n in block))
        for size in sizes:
            here = {n: joined[n].get(size, ()) for n in block}
            for i in range(max(map(len, here.values()))):
                label = (format_size(size) if i == 0 else "").rjust(edge)
                parts = (here[n][i] if i < len(here[n]) else "" for n in block)
                yield _line(label, zip(parts, widths.values(), strict=True))


_Column = Mapping[int, tuple[str, ...]]
"""The lines of a cell, by size."""


def _joined(column: _Column) -> dict[int, tuple[str, ...]]:
    """The cells of a column on a line each, with what they have in common below each other."""
    longest = max(len(name) for name, _ in column.values())
    return {size: (f"{name:<{longest}} {figures}",) for size, (name, figures) in column.items()}


def _width(columns: Mapping[int, _Column], heads: Mapping[int, str]) -> int:
    """The width of some columns, with the gap before each."""
    return sum(
        len(_GAP) + max(len(heads[n]), *(len(line) for cell in column.values() for line in cell))
        for n, column in columns.items()
    )


def _line(label: str, parts: Iterable[tuple[str, int]]) -> str:
    return (label + "".join(f"{_GAP}{text:<{width}}" for text, width in parts)).rstrip()
