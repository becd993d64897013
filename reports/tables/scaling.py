"""The fastest algorithms by size and ranks, and speed-up and efficiency against a stated base.

No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import inf

from msgspec.structs import replace

from busbar.errors import ReportError
from busbar.tables import Column, RenderedTable, render_lines, render_rich, split_columns
from busbar.terminal import wrap_line
from busbar.units import format_count, format_rate, format_seconds, format_size
from reports.analysis.answer import (
    alone,
    answers,
    cell,
    conclusions,
    counts,
    crossovers,
    map_head,
    on_launches,
    sentences,
    server_and_ring,
    stretch_table,
    without_rows,
)
from reports.analysis.compare import row_key
from reports.analysis.steps import fastest_samples
from reports.analysis.winners import Cells, Stretch, at_center, decided, time_ratio, winners
from reports.records.cores import per_core_text
from reports.records.measurement import Measurement
from reports.records.metrics import setting
from reports.statistics.quantities import LATENCY_BOUND, efficiency, speedup

_STEPS = "no answer at each size: training steps are compared per sample"


@dataclass(frozen=True)
class Scaled:
    """A row against the base of its series, the row of the fewest ranks.

    docs/measuring-statistics.md derives the figures. ``size`` in nccl-tests' sense is the buffer of
    every rank, so n ranks have a throughput of n x algbw. ``speedup`` is this throughput over the
    base's, ``efficiency`` the speed-up over the ratio of ranks: t(1) / t(n) if the base has one
    rank. ``low``, ``high``: bootstrap interval of the efficiency, None without raw times.
    """

    row: Measurement
    base: Measurement
    speedup: float
    efficiency: float
    low: float | None
    high: float | None


def scaling(rows: Sequence[Measurement]) -> list[list[Scaled]]:
    """One series for each setting that was measured on at least two numbers of ranks.

    Rows with wrong elements are left out. Raises ReportError if there is no series.
    """
    series: dict[object, dict[int, list[Measurement]]] = {}
    for r in rows:
        if r.ranks and r.size and r.time_s and not r.wrong:
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
    row, first = at_center(rows), at_center(base)
    n, b = float(row.ranks or 1), float(first.ranks or 1)
    # Throughputs in sizes per second; the size is the same and cancels.
    one, all_ = b / (first.time_s or 0.0), n / (row.time_s or 0.0)
    each = efficiency(one / b, all_, n)
    _, low, high = time_ratio(base, rows, unknown=False)
    bounds = None if rows is base or low is None or high in (None, inf) else (low, high)
    low, high = bounds or (None, None)
    return Scaled(row, first, speedup(one, all_), each, low, high)


def scaling_tables(every: Sequence[Sequence[Scaled]], width: int) -> list[RenderedTable]:
    """One table for each setting; the heading states the base case.

    If ``width`` is too small (below about 90 columns), busbw is left out.
    """
    groups: dict[str, list[Scaled]] = {}
    for series in every:
        least = series[0].row
        name = setting(replace(least, ranks=None))
        ranks = format_count(least.ranks, "rank")
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
    """The interval of the efficiency in per cent; with one decimal if it is below 10 %."""
    if s.low is None or s.high is None:
        return ""
    digits = 1 if s.high < 0.1 else 0
    return f"{100 * s.low:.{digits}f} to {100 * s.high:.{digits}f}%"


_GAP = "  "
#: Columns of the ranges to leave out if there is no room, in this order.
_SPARE = ("first, last", "figure", "library takes")
_KEY = "~: another may be as fast"


def answer(
    rows: Sequence[Measurement],
    width: int,
    launches: Sequence[Measurement] = (),
    *,
    more: str = "",
) -> list[str]:
    """The winners by ranges of sizes (`answers`) as lines of ``width``, more if names are longer.

    If most rows were disturbed, the first line says so (`foreword`, with ``more``). ``launches``:
    see `winners`.
    """
    every, steps = answers(rows, launches), fastest_samples(rows)
    lines = []
    if every or steps or alone(rows):
        lines = foreword(rows, width, launches, more=more)
    disturbed = bool(lines)

    def wrapped(texts: Iterable[str]) -> list[str]:
        return [line for text in texts for line in wrap_line(text, width, len(_GAP))]

    for what, ranges in every.items():
        lines += [""] * bool(lines) + wrap_line(f"the fastest of {what}, by size", width, 0)
        lines += _ranges(ranges, width)
        if changes := crossovers(ranges):
            lines += wrap_line(f"crossovers: {changes}", width, len(_GAP))
        lines += wrapped(sentences(ranges, disturbed=disturbed))
    lines += wrapped(server_and_ring(rows, launches))
    return lines + wrapped(steps)


def foreword(
    rows: Sequence[Measurement],
    width: int,
    launches: Sequence[Measurement] = (),
    *,
    more: str = "",
) -> list[str]:
    """Why there is no answer, or why the run is to be repeated first; mostly no lines.

    It begins an `answer`, and stands for one where nothing can be compared. ``launches``: see
    `winners`. ``more``: see `too_disturbed`.
    """
    from reports.analysis.cautions import too_disturbed  # not before the first row

    text = alone(rows) or too_disturbed(launches or rows, more)
    return wrap_line(text, width, len(_GAP))


def best_lines(
    rows: Sequence[Measurement],
    answer: Mapping[str, Sequence[Stretch]],
    width: int,
    launches: Sequence[Measurement] = (),
) -> list[str]:
    """The fastest algorithm at each size as lines: a table per setting and number of ranks.

    ``answer``: the result of `answers` for the rows, with ``each_size``. ``width``: of a line.
    ``launches``: see `winners`.
    """
    lines = foreword(rows, width, launches) if answer or alone(rows) else []
    for what, each in answer.items():
        lines += [""] * bool(lines) + wrap_line(f"the fastest of {what}, at each size", width, 0)
        lines += _ranges(each, width)
        if _KEY not in lines and not all(one.sure for one in each):
            lines.append(_KEY)
    if not lines and (per_sample := fastest_samples(rows)):
        for text in (_STEPS, *per_sample):
            lines += wrap_line(text, width, len(_GAP))
    return lines or ["no answer: at no size were several algorithms measured"]


def conclusion_lines(rows: Sequence[Measurement], width: int, more: str = "") -> list[str]:
    """`conclusions` as lines, at most ``width`` wide unless names are longer."""
    return [line for text in conclusions(rows, more) for line in wrap_line(text, width, len(_GAP))]


def disturbance_lines(rows: Sequence[Measurement], width: int) -> list[str]:
    """`disturbance` as lines, at most ``width`` wide; none if nothing disturbed the rows."""
    from reports.analysis.cautions import disturbance  # not before the first row

    return wrap_line(disturbance(rows), width, len(_GAP))


def caution_lines(rows: Sequence[Measurement], width: int, *, more: str = "") -> list[str]:
    """What an answer rests on, as lines.

    These are `without_rows`, launches that are `far_off`, `disturbance_lines`, and `on_launches`.
    ``more``: the run's options that no record has; with ``--out`` the rows are ``kept``.
    """
    from reports.analysis.cautions import far_off  # not before the first row

    texts = [*without_rows(rows), far_off(rows)]
    lines = [line for text in texts for line in wrap_line(text, width, len(_GAP))]
    lines += disturbance_lines(rows, width)
    return [*lines, *wrap_line(on_launches(rows, kept="--out" in more.split()), width, len(_GAP))]


def _ranges(ranges: Sequence[Stretch], width: int) -> list[str]:
    """A line for each range of sizes that has one winner, under column heads.

    Without room ``at 2 of 9 sizes`` loses its last word, then columns of `_SPARE` are left out.
    """
    heads, rows = stretch_table(ranges)
    columns = list(zip(heads, *rows, strict=True))
    lines = _aligned(columns)
    if max(map(len, lines)) > width:
        columns = [tuple(text.removesuffix(" sizes") for text in column) for column in columns]
        lines = _aligned(columns)
    for name in _SPARE:
        if max(map(len, lines)) > width:
            columns = [column for column in columns if column[0] != name]
            lines = _aligned(columns)
    return lines


def _aligned(columns: Iterable[Sequence[str]], first: int = 0) -> list[str]:
    """Lines of columns, each with its head; only the first one is aligned to the right."""
    return render_lines(
        ((head, "left" if n else "right", cells) for n, (head, *cells) in enumerate(columns)),
        (first,),
    )


def winners_map(rows: Sequence[Measurement], width: int) -> list[list[str]]:
    """The winners by size and number of ranks: lines for each setting with several rank counts.

    The entry of a winner takes one line, or two if ``width`` is too small. If columns still do not
    fit, the further rank counts follow in another table below.
    """
    crowded = {r.ranks: r.ranks_per_core for r in rows if r.ranks and r.oversubscribed}
    return [
        [
            *wrap_line(f"the fastest of {thing}, by size and ranks", width, 0),
            *wrap_line(f"{_figure(cells)}, and {map_head(cells)}", width, 0),
            *wrap_line(_KEY + _shared(crowded), width, 0),
            *_drawn(cells, {n: format_count(n, "rank") for n in counts(cells)}, width),
        ]
        for thing, cells in winners(rows).items()
        if len(counts(cells)) > 1
    ]


def _figure(cells: Cells) -> str:
    """The name of the winners' figures: busbw, the time, or busbw with the time for small sizes."""
    if all(w.latency_bound for w in cells.values()):
        return "time"
    few = format_size(LATENCY_BOUND)
    small = any(w.latency_bound for w in cells.values())
    return f"busbw in GB/s, below {few} the time" if small else "busbw in GB/s"


def _shared(crowded: Mapping[int, float | None]) -> str:
    if not crowded:
        return ""
    counted = ", ".join(map(str, sorted(crowded)))
    which = f"{counted} ranks share cores ({per_core_text(crowded.values())})"
    return f"; {which}: times include waiting for a core"


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
        lines = [("size", *(heads[n] for n in block))]
        for size in sizes:
            here = zip_longest(*(joined[n].get(size, ()) for n in block), fillvalue="")
            lines += [("" if i else format_size(size), *parts) for i, parts in enumerate(here)]
        yield from _aligned(list(zip(*lines, strict=True)), edge)


_Column = Mapping[int, tuple[str, ...]]
"""The lines of a cell, by size."""


def _joined(column: _Column) -> dict[int, tuple[str, ...]]:
    """A column of the map with each entry on one line: algorithm and figures, aligned."""
    longest = max(len(name) for name, _ in column.values())
    return {size: (f"{name:<{longest}} {figures}",) for size, (name, figures) in column.items()}


def _width(columns: Mapping[int, _Column], heads: Mapping[int, str]) -> int:
    """The width of these columns together, with their heads and the gap before each."""
    return sum(
        len(_GAP) + max(len(heads[n]), *(len(line) for cell in column.values() for line in cell))
        for n, column in columns.items()
    )
