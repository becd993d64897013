"""The tables at the end of a run: algorithms and the library, bytes, pairs of ranks, arrivals.

All lines are comments (``#``) in nccl-tests' table, so that its parsers skip them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from textwrap import wrap

from busbar.statistics import interval
from busbar.tables import Column, render_lines, split_columns
from busbar.units import format_digits, format_seconds, seven_characters
from reports.analysis.winners import Winner, winners
from reports.records.measurement import LAST, LIBRARY, Measurement, placements
from reports.records.metrics import PLACEMENT
from reports.statistics.quantities import LATENCY_BOUND, bandwidths, center, of_limit
from reports.tables.scaling import answer

#: The point-to-point tests, and the units of their cells.
TESTS: Mapping[str, str] = {
    "latency": "us, one way",
    "bandwidth": "MB/s of all pairs (messages/s)",
    "bidirectional_bandwidth": "MB/s of all pairs, both ways (messages/s)",
}
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
                lines += ["#", f"# {' '.join(words)}, time from the last arrival; *: the fastest,"]
                lines += ["# ~: another may be as fast (95 %)"]
                lines += [line for block in blocks for line in block]
    return lines


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
    mark = "" if name != _fastest(by) else "*" if _sure(by) else "~"
    return format_seconds(median(by[name])) + (mark or " ")


def _fastest(by: Mapping[str, tuple[float, ...]]) -> str:
    return min(by, key=lambda name: (median(by[name]), name))


def _sure(by: Mapping[str, tuple[float, ...]]) -> bool:
    """True if the interval of the fastest ends before every other interval begins."""
    first = _fastest(by)
    mine = interval(by[first])
    others = [interval(times) for name, times in by.items() if name != first]
    return mine is not None and all(one is not None and mine[1] < one[0] for one in others)


def _changes(times: PatternTimes, size: int) -> list[str]:
    """A line on the patterns under which another algorithm is the certain winner; or none."""
    zero = times.get("zero")
    if zero is None or not _sure(zero):
        return []
    usual = _fastest(zero)
    winner = {pattern: _fastest(by) for pattern, by in times.items() if _sure(by)}
    other = [f"{name} under {pattern}" for pattern, name in winner.items() if name != usual]
    return [f"# {size} B: {usual} when all arrive at once, {', '.join(other)}"] if other else []


_SIZE_EDGE = len("# ") + 12  # the width of the first column, with the size
_MOST_HEAD = 16  # longer names are wrapped
_JOINTS = ":+_,"
_KEY = ">: the fastest, ~: the fastest, but the next may be as fast"
_BOUND = "bound: ranks share all work; it is no algorithm, and does not compete"
_MEANS = "above are means (--statistic); what > and ~ mark, and what follows, goes by medians"


def summary(rows: Sequence[Measurement], statistic: str = "median", width: int = 80) -> list[str]:
    """The closing lines for one run's rows, at most ``width`` characters wide if possible."""
    lines: list[str] = []
    for group in dict.fromkeys((r.dtype, r.op, r.root) for r in rows):
        for placement in PLACEMENT:
            wanted = (*group, placement)
            mine = [r for r in rows if (r.dtype, r.op, r.root, r.placement) == wanted]
            for grid in _grids(mine, statistic, _best(mine)):
                lines += _drawn(grid, width)
    lines += _volumes(rows)
    text = answer(rows, width - len("# "))
    if text and statistic == "mean":
        text = [*wrap(_MEANS, width - len("# ")), *text]
    return [*lines, *(["#"] if text else ()), *(f"# {line}".rstrip() for line in text)]


def _best(rows: Iterable[Measurement]) -> dict[int, Winner]:
    """The winner of each size; sizes with a single contender are left out."""
    best = winners(list(rows)).values()
    return {size: w for cells in best for (size, _), w in cells.items() if w.margin is not None}


@dataclass(frozen=True)
class _Grid:
    """A table with a line per size, a column per contender, and ``notes`` below it.

    ``bounds``: the contenders that are no algorithm, but a bound.
    """

    title: str
    columns: dict[str, int]
    lines: dict[int, dict[str, str]]
    bounds: frozenset[str]
    notes: Sequence[str] = field(default=())


def _grids(
    rows: Sequence[Measurement], statistic: str, best: Mapping[int, Winner]
) -> Iterator[_Grid]:
    """The tables of one placement: time, busbw, share of the limit, energy, memory clock."""
    from reports.analysis.cautions import WHY_ABOVE, why_above  # not before the first row

    by_size: dict[int, dict[str, Measurement]] = {}
    for r in rows:
        if r.times_s:
            by_size.setdefault(r.size or 0, {})[r.algorithm] = r
    if not by_size:
        return
    names = list(dict.fromkeys(name for row in by_size.values() for name in row))
    bounds = frozenset(r.algorithm for r in rows if r.worksharing)
    names.sort(key=lambda name: (name in bounds, name != LIBRARY))  # else as they were measured
    first = rows[0]
    head = f"{first.collective} {PLACEMENT[first.placement]} {first.dtype} {first.op}"
    head += f" root {first.root}" if first.root is not None and first.root >= 0 else ""

    def grid(
        what: str,
        widths: dict[str, int],
        cell: Callable[[Measurement], str],
        sizes: Callable[[int], bool] = lambda size: True,
        notes: Sequence[str] = (),
    ) -> _Grid:
        lines = {
            size: {name: text for name, r in row.items() if (text := cell(r))}
            for size, row in by_size.items()
            if sizes(size)
        }
        rows = {size: row for size, row in lines.items() if row}
        return _Grid(f"{head}, {what}", widths, rows, bounds, notes)

    against = "; (x): against library" if LIBRARY in names else ""
    widths = {name: _column(name, 8 if name == LIBRARY else 16) for name in names}
    key = [_KEY] * bool(best) + [_BOUND] * bool(bounds)

    def rate(r: Measurement) -> str:
        size = r.size or 0
        return _mark(r, best.get(size)) + _rate(r, by_size[size].get(LIBRARY), statistic)

    # Below this size a call takes its latency, so a rate has no meaning.
    small = "time in us" + against
    yield grid(small, widths, rate, lambda size: size < LATENCY_BOUND, key)
    yield grid("busbw in GB/s" + against, widths, rate, lambda size: size >= LATENCY_BOUND, key)
    narrow = {name: _column(name, 7) for name in names}

    def reached(r: Measurement) -> str:
        share = _share(r, statistic)
        return "" if share is None else f"{100 * share:.0f}{why_above(r, share)}"

    texts = {reached(r)[-1:] for row in by_size.values() for r in row.values()}
    notes = [f"{letter}: {why}" for letter, why in WHY_ABOVE.items() if letter in texts]
    yield grid("% of the limit that memory sets", narrow, reached, notes=notes)
    yield grid(
        "J per operation, idle taken off",
        narrow,
        lambda r: format_digits(r.energy_per_op_j, seven_characters),
    )
    yield grid(
        "memory clock in MHz",
        narrow,
        lambda r: format_digits(r.clock_memory_hz, lambda clock: f"{clock / 1e6:.0f}"),
    )


def _column(name: str, least: int) -> int:
    """The width of the column of a name; a longer name is wrapped."""
    return max(least, min(len(name), _MOST_HEAD))


def _mark(row: Measurement, best: Winner | None) -> str:
    if best is None or best.row.algorithm != row.algorithm:
        return ""
    return ">" if best.sure else "~"


def _rate(row: Measurement, library: Measurement | None, statistic: str) -> str:
    seconds = center(row, statistic) or 0.0
    rated = (row.size or 0) >= LATENCY_BOUND
    figure = bandwidths(row, seconds)[1] / 1e9 if rated else seconds * 1e6
    base = None if library is None else center(library, statistic)
    ratio = (
        ""
        if base is None or row.algorithm == LIBRARY
        else f" ({seven_characters(base / seconds)}x)"
    )
    return seven_characters(figure) + ratio


def _share(row: Measurement, statistic: str) -> float | None:
    """The share of the limit that was reached; None if not known."""
    seconds = center(row, statistic)
    return of_limit(seconds, row.limit_s) if seconds and row.limit_s is not None else None


def _drawn(grid: _Grid, width: int) -> list[str]:
    if not grid.lines:
        return []
    lines = ["#", f"# {grid.title}"]
    for shown in split_columns(
        {name: wide + 2 for name, wide in grid.columns.items()}, width - _SIZE_EDGE
    ):
        heads = [
            ["bound:"] * (name in grid.bounds) + _stacked(name, grid.columns[name])
            for name in shown
        ]
        for at in range(-max(map(len, heads)), 0):
            label = "size" if at == -1 else ""
            texts = (head[at] if -at <= len(head) else "" for head in heads)
            lines.append(_line(label, zip(texts, shown, strict=True), grid.columns))
        for size, row in grid.lines.items():
            cells = ((row.get(name, "N/A"), name) for name in shown)
            lines.append(_line(str(size), cells, grid.columns))
    return lines + [f"# {line}" for note in grid.notes for line in wrap(note, width - len("# "))]


def _line(label: str, cells: Iterable[tuple[str, str]], widths: Mapping[str, int]) -> str:
    texts = (f"  {text:>{widths[name]}}" for text, name in cells)
    return f"# {label:>12}{''.join(texts)}".rstrip()


def _stacked(name: str, width: int) -> list[str]:
    """Break a name into pieces of at most ``width`` characters, if possible behind ``:+_,``."""
    pieces = []
    while len(name) > width:
        cut = max(name.rfind(mark, 0, width) for mark in _JOINTS) + 1 or width
        pieces.append(name[:cut])
        name = name[cut:]
    return [*pieces, name]


def _volumes(rows: Sequence[Measurement]) -> list[str]:
    """A table of the bytes that each algorithm moved at its largest size, in units of that size."""
    largest: dict[str, list[Measurement]] = {}
    for pair in placements(rows):
        name, size = pair.every[0].algorithm, pair.every[0].size or 0
        if name not in largest or size >= (largest[name][0].size or 0):
            largest[name] = pair.every
    moved = []
    for name, row in largest.items():
        timed = next((one for one in row if one.times_s), None)
        if timed is None or timed.sent_bytes is None or not timed.size:
            continue
        each = (timed.sent_bytes, timed.received_bytes or 0, timed.total_bytes or 0)
        moved.append((name, [f"{nbytes / timed.size:.4f}" for nbytes in each]))
    if not moved:
        return []
    widest = max(24, *(len(name) for name, _ in moved))
    table = [("", ["busiest out", "busiest in", "all links"]), *moved]
    return [
        "#",
        f"# {rows[0].collective}: bytes moved per iteration, as counted, in units of the size",
        *(f"# {name:>{widest}}" + "".join(f" {c:>14}" for c in cells) for name, cells in table),
    ]
