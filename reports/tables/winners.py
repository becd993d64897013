"""Who wins where: the fastest algorithm at every size and rank count, as a map for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap

import numpy as np

from busbar.statistics import interval
from reports.records.cores import per_core_text
from reports.records.rows import Row
from reports.records.shown import rate, seconds, size_text
from reports.statistics.inference import between_runs
from reports.tables.show import setting

_GAP = "  "
_KEY = "~: the next may be as fast"


@dataclass(frozen=True)
class Winner:
    """The fastest at one size and rank count. ``row``: its first row.

    ``margin``: how many times as long the next takes, None where it is alone; ``low``, ``high``:
    its 95 % interval, None without raw times. ``sure``: the interval lies above 1.
    """

    name: str
    row: Row
    margin: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def sure(self) -> bool:
        """Whether nothing else may be as fast."""
        return self.margin is None or (self.low is not None and self.low > 1)


Cells = dict[tuple[int, int], Winner]
"""By size and number of ranks."""


def winners(rows: Sequence[Row]) -> dict[str, Cells]:
    """The winners of each measured thing that has several rank counts, by its name.

    Wrong results win nothing, and neither does shared work: it is no algorithm.
    """
    groups: dict[str, dict[tuple[int, int], dict[str, list[Row]]]] = {}
    several = _several_transports(rows)
    for r in rows:
        if not r.ranks or r.size is None or not r.time_s or r.wrong or r.worksharing:
            continue
        name = f"{r.algorithm} {r.transport}" if r.algorithm in several else r.algorithm
        root = f", root {r.root}" if r.root is not None and r.root >= 0 else ""
        cells = groups.setdefault(setting(replace(r, ranks=None)) + root, {})
        cells.setdefault((r.size, r.ranks), {}).setdefault(name, []).append(r)
    found = {
        thing: {at: _winner(contenders) for at, contenders in sorted(cells.items())}
        for thing, cells in groups.items()
    }
    return {t: cells for t, cells in found.items() if len({ranks for _, ranks in cells}) > 1}


def _several_transports(rows: Sequence[Row]) -> set[str]:
    carried: dict[str, set[str]] = {}
    for r in rows:
        carried.setdefault(r.algorithm, set()).add(r.transport)
    return {name for name, transports in carried.items() if len(transports) > 1}


def _winner(contenders: Mapping[str, Sequence[Row]]) -> Winner:
    times = {
        name: [r.times_s or (r.time_s or 0.0,) for r in rows] for name, rows in contenders.items()
    }
    middle = {name: float(np.median(np.concatenate(runs))) for name, runs in times.items()}
    first, *others = sorted(middle, key=lambda name: (middle[name], name))
    row = contenders[first][0]
    if middle[first] != row.time_s and row.busbw_bytes_per_s and row.time_s:
        rated = row.busbw_bytes_per_s * row.time_s / middle[first]
        row = replace(row, time_s=middle[first], busbw_bytes_per_s=rated)
    if not others:
        return Winner(first, row)
    margin = middle[others[0]] / middle[first]
    return Winner(first, row, margin, *_bounds(times[first], times[others[0]]))


def _bounds(
    best: Sequence[Sequence[float]], other: Sequence[Sequence[float]]
) -> tuple[float | None, float | None]:
    """The ratio of medians' interval, from the ends of both intervals: wider than it need be.

    A sweep has hundreds of such ratios, too many for a bootstrap. Where sides were measured several
    times it holds what differs from time to time, too
    (`reports.statistics.inference.between_runs`).
    """
    ends = [interval([t for run in side for t in run]) for side in (best, other)]
    if ends[0] is None or ends[1] is None or not ends[0][0]:
        return None, None
    low, high = ends[1][0] / ends[0][1], ends[1][1] / ends[0][0]
    wider = between_runs(best, other) or (low, high)
    return min(low, wider[0]), max(high, wider[1])


def winners_map(rows: Sequence[Row], width: int) -> list[list[str]]:
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
            *_drawn(cells, {n: _head(n, n in crowded) for n in _counts(cells)}, width),
        ]
        for thing, cells in winners(rows).items()
    ]


def _figure(cells: Cells) -> str:
    """What stands first in a cell: where nothing is moved, as in a barrier, there is no rate."""
    return "busbw in GB/s" if any(w.row.busbw_bytes_per_s for w in cells.values()) else "time"


def _shared(crowded: Mapping[int, float | None]) -> str:
    said = per_core_text(crowded.values())
    return f"; *: oversubscribed ({said}), times include waiting for a core" if said else ""


def _head(ranks: int, crowded: bool) -> str:
    return f"{ranks} rank{'s' * (ranks != 1)}{'*' * crowded}"


def _counts(cells: Cells) -> list[int]:
    return sorted({ranks for _, ranks in cells})


def _drawn(cells: Cells, heads: Mapping[int, str], width: int) -> Iterator[str]:
    sizes = sorted({size for size, _ in cells})
    edge = max(len("size"), *(len(size_text(size)) for size in sizes))
    texts = {at: _text(winner) for at, winner in cells.items()}
    columns = {n: {size: texts[size, n] for size in sizes if (size, n) in texts} for n in heads}
    made: dict[int, _Column] = {n: _joined(column) for n, column in columns.items()}
    if _width(made, heads) > width - edge:
        made = dict(columns)
    for block in _blocks(made, heads, width - edge):
        widths = {n: _width({n: made[n]}, heads) - len(_GAP) for n in block}
        yield _line("size".rjust(edge), ((heads[n], widths[n]) for n in block))
        for size in sizes:
            here = {n: made[n].get(size, ()) for n in block}
            for i in range(max(map(len, here.values()))):
                label = (size_text(size) if i == 0 else "").rjust(edge)
                parts = (here[n][i] if i < len(here[n]) else "" for n in block)
                yield _line(label, zip(parts, widths.values(), strict=True))


_Column = Mapping[int, tuple[str, ...]]
"""By size the lines of a cell."""


def _joined(column: _Column) -> dict[int, tuple[str, ...]]:
    """The cells of a column on a line each, with what they have in common below each other."""
    longest = max(len(name) for name, _ in column.values())
    return {size: (f"{name:<{longest}} {figures}",) for size, (name, figures) in column.items()}


def _width(columns: Mapping[int, _Column], heads: Mapping[int, str]) -> int:
    """What some columns take, with the gap before each."""
    return sum(
        len(_GAP) + max(len(heads[n]), *(len(line) for cell in column.values() for line in cell))
        for n, column in columns.items()
    )


def _blocks(
    columns: Mapping[int, _Column], heads: Mapping[int, str], room: int
) -> Iterator[list[int]]:
    """As many columns at once as fit, at least one."""
    block: list[int] = []
    for n in columns:
        if block and _width({m: columns[m] for m in (*block, n)}, heads) > room:
            yield block
            block = []
        block.append(n)
    yield block


def _line(label: str, parts: Iterable[tuple[str, int]]) -> str:
    return (label + "".join(f"{_GAP}{text:<{width}}" for text, width in parts)).rstrip()


def _text(winner: Winner) -> tuple[str, str]:
    """A cell: the name, and the figures."""
    rated = winner.row.busbw_bytes_per_s
    if winner.margin is None:
        margin = "alone"
    elif winner.low is None or winner.high is None:
        margin = _factor(winner.margin)
    else:
        margin = f"{_factor(winner.low)}-{_factor(winner.high)}"
    figure = _rate(rated) if rated else seconds(winner.row.time_s)
    return f"{'' if winner.sure else '~'}{winner.name}", f"{figure} {margin}"


def _rate(value: float) -> str:
    """GB/s; two digits of what is little, so that four rank counts stand side by side."""
    return rate(value) if value >= 1e8 else f"{value / 1e9:.2g}"


def _factor(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.0f}"
