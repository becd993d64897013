"""The tables at the end of a run: algorithms and the library, bytes, pairs of ranks, arrivals.

All lines are comments (``#``) in nccl-tests' table, so that its parsers skip them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median
from textwrap import wrap

from busbar.statistics import interval
from busbar.tables import GAP, Column, render_lines, split_columns
from busbar.units import format_digits, format_seconds, seven_characters
from reports.analysis.textbook import FORMULAS, VOLUMES
from reports.analysis.winners import Winner, winners
from reports.records.measurement import LAST, LIBRARY, Measurement, grouped, placements
from reports.records.metrics import PLACEMENT, TESTS
from reports.statistics.quantities import (
    BEYOND_LIMIT,
    LATENCY_BOUND,
    bandwidths,
    center,
    limit_text,
    of_limit,
)
from reports.tables.scaling import answer, caution_lines, foreword

_SIZE = 10


def pairs(rows: Sequence[Measurement], statistic: str = "median") -> list[str]:
    """The closing table of one point-to-point test: one line per size, one column per algorithm.

    MB are 10^6 bytes. Empty if nothing was timed.
    """
    cells: dict[int, dict[str, str]] = {}
    for one in rows:
        seconds = center(one, statistic) if one.placement == "out" else None
        if seconds:
            cells.setdefault(one.size or 0, {})[one.algorithm] = _pair_cell(one, seconds)
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


def _pair_cell(one: Measurement, seconds: float) -> str:
    if one.collective == "latency":
        return format_digits(seconds * 1e6)
    rate = bandwidths(one, seconds)[1]
    return f"{format_digits(rate / 1e6)} ({format_digits(rate / (one.size or 1))})"


_EDGE = 12

PatternTimes = Mapping[str, Mapping[str, tuple[float, ...]]]
"""Seconds of iterations by pattern and algorithm."""


def arrivals_table(rows: Sequence[Measurement]) -> list[str]:
    """The tables of times by arrival pattern; no lines if there was one pattern only."""
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
                lines += ["#", f"# {' '.join(words)}, time from the last arrival"]
                lines += [line for block in blocks for line in block]
    return [*lines, f"# {_KEY} (95 %)"] if lines else []


def _block(rows: Sequence[Measurement], size: int) -> list[str]:
    """The table of one size (a line per algorithm, a column per pattern), and winner changes."""
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
        (head, "right", [_pattern_cell(times[pattern], name) for name in names])
        for pattern, head in heads.items()
    ]
    lines = render_lines(columns, [_EDGE] * len(columns))
    return [*(f"# {line}" for line in lines), *_changes(times, size)]


def _pattern_cell(by: Mapping[str, tuple[float, ...]], name: str) -> str:
    if name not in by:
        return "N/A"
    mark = "" if name != _fastest(by) else ">" if _sure(by) else "~"
    return mark + format_seconds(median(by[name]))


def _fastest(by: Mapping[str, tuple[float, ...]]) -> str:
    return min(by, key=lambda name: (median(by[name]), name))


def _sure(by: Mapping[str, tuple[float, ...]]) -> bool:
    """True if the fastest algorithm's 95 % interval ends before every other interval begins."""
    first = _fastest(by)
    mine = interval(by[first])
    others = [interval(times) for name, times in by.items() if name != first]
    return mine is not None and all(one is not None and mine[1] < one[0] for one in others)


def _changes(times: PatternTimes, size: int) -> list[str]:
    """A line on arrival patterns with another certain winner than if all ranks arrive at once.

    No line if there is none, or if no algorithm wins for certain when all arrive at once.
    """
    zero = times.get("zero")
    if zero is None or not _sure(zero):
        return []
    usual = _fastest(zero)
    winner = {pattern: _fastest(by) for pattern, by in times.items() if _sure(by)}
    other = [f"{name} under {pattern}" for pattern, name in winner.items() if name != usual]
    return [f"# {size} B: {usual} when all arrive at once, {', '.join(other)}"] if other else []


_COMMENT = "# "  # all lines are comments
_INDENT = "  "  # of the further lines of a sentence
_MOST_HEAD = 16  # longer names are wrapped
_JOINTS = ":+_,"
_LIMIT = "limit"
_FAR = 1000  # ratios of times beyond this, or below 1 over it, are only said to be so
_KEY = ">: the fastest, ~: the fastest, but another may be as fast"
_BOUND = "bound: ranks share all work; it is no algorithm, and does not compete"
_OF_LIMIT = (
    "limit: what the fastest reached of the limit that memory sets; --limit column and reports show"
    " have it of every row"
)
_BEYOND = f"{limit_text(inf)}: more than any memory reaches; the limit does not hold for these rows"
_MEANS = "above are means (--statistic); what > and ~ mark, and what follows, goes by medians"


def summary(
    rows: Sequence[Measurement], statistic: str = "median", width: int = 80, *, more: str = ""
) -> list[str]:
    """The closing lines for a run's rows, at most ``width`` characters wide if possible.

    The tables of all placements, then the meaning of their marks, bytes, and the answers. ``more``:
    the run's options that no record has, for the command that repeats it (`caution_lines`).
    """
    room = width - len(_COMMENT)
    kinds = grouped(rows, lambda r: (r.collective, r.dtype, r.op, r.root))
    lines: list[str] = []
    notes: dict[str, None] = {}
    for kind in kinds.values():
        for placement in PLACEMENT:
            mine = [r for r in kind if r.placement == placement]
            for grid in _grids(mine, statistic, _best(mine)):
                lines += _drawn(grid, room)
                notes |= dict.fromkeys(grid.notes)
    meanings = [line for note in notes for line in wrap(note, room, subsequent_indent=_INDENT)]
    lines += ["", *meanings] if meanings else []
    for mine in grouped(rows, lambda r: r.collective).values():
        lines += _volumes(mine)
    text = answer(rows, room, more=more)
    if text and statistic == "mean":
        text = [*wrap(_MEANS, room), *text]
    text = text or foreword(rows, room, more=more)
    text += caution_lines(rows, room, more=more)
    lines += ["", *text] if text else []
    return [f"{_COMMENT}{line}".rstrip() for line in lines]


def _best(rows: Iterable[Measurement]) -> dict[int, Winner]:
    """The winner of each size; sizes at which a single algorithm was measured are left out."""
    best = winners(list(rows)).values()
    return {size: w for cells in best for (size, _), w in cells.items() if w.margin is not None}


@dataclass(frozen=True)
class _Grid:
    """A table with a line per size and a column per algorithm, library or bound.

    ``lines``: the text for each size and column. ``bounds``: the columns that are no algorithm, but
    a bound of what the machine can do (``worksharing``). ``units``: the size from which on a unit
    holds, and the unit, for tables with times of small sizes and busbw of large ones; empty if
    the title names the only unit. ``notes``: lines below the table, with the meanings of marks.
    """

    title: str
    columns: Sequence[str]
    lines: Mapping[int, Mapping[str, str]]
    bounds: frozenset[str]
    units: Mapping[int, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


def _grids(
    rows: Sequence[Measurement], statistic: str, best: Mapping[int, Winner]
) -> Iterator[_Grid]:
    """The tables of one placement: time or busbw, then energy and memory clock if measured.

    ``statistic``: the figure of each row's times, such as ``median``; ``best``: the winner of each
    size, which gets a mark.
    """
    from reports.analysis.cautions import WHY_ABOVE, why_above  # not before the first row

    by_size: dict[int, dict[str, Measurement]] = {}
    for r in sorted((r for r in rows if r.times_s), key=lambda r: r.size or 0):
        by_size.setdefault(r.size or 0, {})[r.algorithm] = r
    if not by_size:
        return
    names = list(dict.fromkeys(name for row in by_size.values() for name in row))
    bounds = frozenset(r.algorithm for r in rows if r.worksharing)
    names.sort(key=lambda name: (name in bounds, name != LIBRARY))  # else as they were measured
    first = rows[0]
    head = f"{first.collective} {PLACEMENT[first.placement]} {first.dtype} {first.op}"
    head += f" root {first.root}" if first.root is not None and first.root >= 0 else ""

    def rate(r: Measurement) -> str:
        size = r.size or 0
        return _mark(r, best.get(size)) + _rate(r, by_size[size].get(LIBRARY), statistic)

    lines = {size: {name: rate(r) for name, r in row.items()} for size, row in by_size.items()}
    chiefs = {size: _chief(row, best.get(size)) for size, row in by_size.items()}
    shares = {size: share for size, r in chiefs.items() if (share := _share(r, statistic))}
    letters = {size: why_above(chiefs[size], share) for size, share in shares.items()}
    edge = max(map(len, letters.values()), default=0)
    for size, share in shares.items():
        lines[size][_LIMIT] = f"{limit_text(share, '.0f')}{letters[size]:{edge}}"
    # Below this size a call takes its latency, so a rate has no meaning.
    units: dict[str, int] = {}
    for size in by_size:
        units.setdefault("busbw in GB/s" if size >= LATENCY_BOUND else "time in us", size)
    what = f", {next(iter(units))}" if len(units) == 1 else ""
    notes = [_KEY] * bool(best) + [_BOUND] * bool(bounds) + [_OF_LIMIT] * bool(shares)
    notes += [f"{one}: {why}" for one, why in WHY_ABOVE.items() if one in letters.values()]
    notes += [_BEYOND] * any(share > BEYOND_LIMIT for share in shares.values())
    yield _Grid(
        f"{head}{what}{'; (x): against library' if LIBRARY in names else ''}",
        [*names, *[_LIMIT] * bool(shares)],
        lines,
        bounds,
        {size: unit for unit, size in units.items()} if len(units) > 1 else {},
        notes,
    )
    for title, cell in _GAUGED.items():
        cells = {
            size: {name: text for name, r in row.items() if (text := cell(r))}
            for size, row in by_size.items()
        }
        cells = {size: row for size, row in cells.items() if row}
        if cells:
            yield _Grid(f"{head}, {title}", names, cells, bounds)


# What a GPU's counters say of each row, by the title of its table.
_GAUGED: Mapping[str, Callable[[Measurement], str]] = {
    "J per operation, idle taken off": lambda r: format_digits(r.energy_per_op_j, seven_characters),
    "memory clock in MHz": lambda r: format_digits(
        r.clock_memory_hz, lambda clock: f"{clock / 1e6:.0f}"
    ),
}


def _chief(row: Mapping[str, Measurement], best: Winner | None) -> Measurement:
    """The row of a size that is compared with the limit: of the winner ``best``.

    Without a winner, the row of an algorithm, or of the bound (``worksharing``) if it is alone.
    """
    if best is not None and best.row.algorithm in row:
        return row[best.row.algorithm]
    return min(row.values(), key=lambda r: r.worksharing)


def _mark(row: Measurement, best: Winner | None) -> str:
    if best is None or best.row.algorithm != row.algorithm:
        return ""
    return ">" if best.sure else "~"


def _factor(ratio: float) -> str:
    """A ratio as ``2.31x``; beyond a thousand, as disturbed rows may differ, only that it is."""
    if ratio >= _FAR:
        return f">{_FAR - 1}x"
    return f"{seven_characters(ratio)}x" if ratio > 1 / _FAR else f"<{1 / _FAR:g}x"


def _rate(row: Measurement, library: Measurement | None, statistic: str) -> str:
    seconds = center(row, statistic) or 0.0
    rated = (row.size or 0) >= LATENCY_BOUND
    figure = bandwidths(row, seconds)[1] / 1e9 if rated else seconds * 1e6
    base = None if library is None else center(library, statistic)
    ratio = "" if base is None or row.algorithm == LIBRARY else f" ({_factor(base / seconds)})"
    return seven_characters(figure) + ratio


def _share(row: Measurement, statistic: str) -> float | None:
    """The share of the measured limit (`Measurement.limit_s`) that a row reached, or None."""
    seconds = center(row, statistic)
    return of_limit(seconds, row.limit_s) if seconds and row.limit_s is not None else None


def _drawn(grid: _Grid, room: int) -> list[str]:
    """A table as lines of at most ``room`` characters; further columns follow in a table below.

    Each unit stands on a line above the first size that it holds for.
    """
    lines = ["", *wrap(grid.title, room, subsequent_indent=_INDENT)]
    cells = {
        name: [row.get(name, "" if name == _LIMIT else "N/A") for row in grid.lines.values()]
        for name in grid.columns
    }
    widths = {
        name: max(min(len(name), _MOST_HEAD), *map(len, texts)) for name, texts in cells.items()
    }
    sizes = list(map(str, grid.lines))
    edge = max(map(len, ("size", *sizes)))
    for shown in split_columns({n: wide + GAP for n, wide in widths.items()}, room - edge):
        heads = {n: ["bound:"] * (n in grid.bounds) + _stacked(n, widths[n]) for n in shown}
        tall = max(map(len, heads.values()))
        stacks = [["size"], *heads.values()]
        columns = [
            [*[""] * (tall - len(stack)), *stack, *texts]
            for stack, texts in zip(stacks, [sizes, *(cells[n] for n in shown)], strict=True)
        ]
        drawn = render_lines((first, "right", rest) for first, *rest in columns)
        lines += drawn[:tall]
        for size, line in zip(grid.lines, drawn[tall:], strict=True):
            lines += [grid.units[size], line] if size in grid.units else [line]
    return lines


def _stacked(name: str, width: int) -> list[str]:
    """Break a name into pieces of at most ``width`` characters, if possible behind ``:+_,``."""
    pieces = []
    while len(name) > width:
        cut = max(name.rfind(mark, 0, width) for mark in _JOINTS) + 1 or width
        pieces.append(name[:cut])
        name = name[cut:]
    return [*pieces, name]


def _volumes(rows: Sequence[Measurement]) -> list[str]:
    """A table of the bytes that the busiest rank sends and receives, and all ranks together.

    It has a line for each algorithm: one iteration at its largest size, in units of that size.
    """
    largest: dict[str, list[Measurement]] = {}
    for pair in placements(rows):
        name, size = pair.every[0].algorithm, pair.every[0].size or 0
        if name not in largest or size >= (largest[name][0].size or 0):
            largest[name] = pair.every
    moved: dict[str, list[str]] = {}
    for name, row in largest.items():
        timed = next((one for one in row if one.times_s), None)
        if timed is None or timed.sent_bytes is None or not timed.size:
            continue
        each = (timed.sent_bytes, timed.received_bytes or 0, timed.total_bytes or 0)
        moved[name] = [f"{nbytes / timed.size:.4f}" for nbytes in each]
    if not moved:
        return []
    columns: list[Column] = [("", "right", list(moved))]
    for head, *cells in zip(
        ("busiest out", "busiest in", "all links"), *moved.values(), strict=True
    ):
        columns.append((head, "right", cells))
    return [
        "",
        f"{rows[0].collective}: bytes moved per iteration, as counted, in units of the size",
        *render_lines(columns, (24, 14, 14, 14), " "),
        *_law(rows[0].collective, rows[0].ranks or 0, list(moved)),
    ]


def _law(collective: str, ranks: int, names: Sequence[str]) -> list[str]:
    """A line on parameter server against ring, if both were measured: the table counts each way."""
    if collective != "allreduce" or ranks < 2 or not {"ps", "ring"} <= set(names):
        return []
    server, ring = (f"{FORMULAS[n]} = {VOLUMES[n](ranks):.4g}N" for n in ("ps", "ring"))
    return [
        "",
        f"busiest port of ps: {server}, all received, then all sent; of ring: {ring}",
        f"sent while as much is received; on hosts of one rank ps needs P = {ranks} times as long",
    ]
