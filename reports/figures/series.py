"""The lines of figures: rows that differ in size only, with name, colour and fit.

Figures and pages share this, so that an algorithm has the same colour in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from busbar.canvas import COLOURS, colours
from busbar.units import format_seconds
from collectives.predict.fit import fit_curve
from collectives.predict.machine import Curve
from reports.analysis.winners import at_center, winners
from reports.records.cores import marked
from reports.records.measurement import LIBRARY, Measurement, grouped

MARKERS = "osD^vPX*<>phdH8"
#: The colour of bounds and predictions.
QUIET = "#555555"
#: Algorithms not dimmed, besides the library's, if there are more algorithms than colours.
_MOST_LEADING = 3
_DIM = 0.35
_DASHES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)))
_POINTS = 64
Floats = NDArray[np.float64]
_MOST_SIZES = 64


def algorithm_of(row: Measurement) -> str:
    """The name that determines a row's colour: the algorithm, or the library if it chose itself."""
    return row.algorithm or row.run.library or "measured"


class Look(NamedTuple):
    """The style of an algorithm, the same in every figure of an input.

    ``place``: index in ``COLOURS``; ``mark``: index in ``MARKERS``, distinct among algorithms of
    one colour; ``bright``: not dimmed.
    """

    place: int
    mark: int
    bright: bool


def looks(rows: Sequence[Measurement]) -> dict[str, Look]:
    """The `Look` of each algorithm of these rows."""
    bright = leading(rows)
    places = colours((algorithm_of(r) for r in rows), bright)
    seen: Counter[int] = Counter()
    look_of = {}
    for name, place in places.items():
        mark = (place + len(COLOURS) * seen[place]) % len(MARKERS)
        look_of[name] = Look(place, mark, name in bright)
        seen[place] += 1
    return look_of


def leading(rows: Sequence[Measurement]) -> set[str]:
    """The algorithms that figures do not dim.

    All if there are enough colours; otherwise the library's, and the three that are the fastest
    most often.
    """
    names = {algorithm_of(r) for r in rows}
    if len(names) <= len(COLOURS):
        return names
    won = Counter(algorithm_of(w.row) for cells in winners(rows).values() for w in cells.values())
    return {name for name, _ in won.most_common(_MOST_LEADING)} | ({LIBRARY} & names)


def run_names(rows: Sequence[Measurement]) -> dict[int, str]:
    """A short name for each run, by ``id(run)``: the file, and the table's number if needed."""
    runs = list({id(r.run): r.run for r in rows}.values())
    several = {s for s in (r.source for r in runs) if sum(r.source == s for r in runs) > 1}
    tails = {s: _tail(s, [r.source for r in runs]) for s in dict.fromkeys(r.source for r in runs)}
    return {
        id(r): f"{tails[r.source]} #{r.number}" if r.source in several else tails[r.source]
        for r in runs
    }


def _tail(source: str, all_: Sequence[str]) -> str:
    """The shortest end of a path that no other path has."""
    parts = source.split("/")
    for n in range(1, len(parts)):
        tail = "/".join(parts[-n:])
        if sum(s == tail or s.endswith("/" + tail) for s in set(all_)) == 1:
            return tail
    return source


@dataclass(frozen=True)
class PlotLine:
    """A line of a figure: its rows and its style. ``bright``: not dimmed."""

    name: str
    rows: tuple[Measurement, ...]
    style: Mapping[str, Any]
    bright: bool

    def placed(self, placement: str) -> PlotLine:
        """The same line with the rows of one placement only."""
        return replace(self, rows=tuple(r for r in self.rows if r.placement == placement))


@dataclass(frozen=True)
class Palette:
    """The `Look` of every algorithm of an input, also for figures that show part of the input."""

    looks: Mapping[str, Look]

    @staticmethod
    def of(rows: Sequence[Measurement]) -> Palette:
        """The palette for these rows."""
        return Palette(looks(rows))

    def series(self, rows: Sequence[Measurement], ranks: bool = False) -> list[PlotLine]:
        """Group rows into lines, each in order of size (or of ranks if ``ranks``).

        Runs of one input form one line unless some point occurs twice. Then each run has its own,
        or if no two runs have several points of a line, points that occur twice become one: of
        `busbar cluster law` each file has one rank count, or measures one size again.
        """

        def along(r: Measurement) -> int:
            return (r.ranks if ranks else r.size) or 0

        points = [(_label(r), along(r), r.size, r.placement) for r in rows]
        repeated = len(set(points)) < len(points)
        if repeated and _are_parts(rows, along):
            rows = [
                _pooled(same) for same in grouped(rows, lambda r: (*_point(r), along(r))).values()
            ]
            repeated = False
        several = len({r.run.source for r in rows}) > 1
        files = run_names(rows)
        groups: dict[str, list[Measurement]] = {}
        for r in sorted(rows, key=along):
            run = files[id(r.run)] if several else f"run {r.run.number}"
            groups.setdefault(f"{_label(r)} ({run})" if repeated else _label(r), []).append(r)
        of_colour, of_algorithm = Counter[int](), Counter[str]()
        series = []
        for name, members in groups.items():
            algorithm = algorithm_of(members[0])
            look = self.looks[algorithm]
            # Lines of one algorithm, such as over two transports, differ in their markers, too.
            mark = (look.mark + of_algorithm[algorithm]) % len(MARKERS)
            style = _style(look._replace(mark=mark), of_colour[look.place])
            of_colour[look.place] += 1
            of_algorithm[algorithm] += 1
            if members[0].worksharing:
                name, style = f"bound: {name}", {**style, "color": QUIET}
            series.append(PlotLine(name, tuple(members), style, look.bright))
        return series


def _point(r: Measurement) -> tuple[object, ...]:
    return _label(r), r.size, r.placement


def _are_parts(rows: Sequence[Measurement], along: Callable[[Measurement], int]) -> bool:
    """True if runs measured different points of the same lines, rather than all points again.

    So of each line at most one run has several points along the axis ``along``.
    """
    for of_line in grouped(rows, lambda r: (_label(r), r.placement)).values():
        of_runs = grouped(of_line, lambda r: id(r.run)).values()
        if sum(len(set(map(along, one))) > 1 for one in of_runs) > 1:
            return False
    return len(set(map(along, rows))) > 1


def _pooled(same: Sequence[Measurement]) -> Measurement:
    """One row for measurements of the same point, whose interval is not known if several."""
    if len(same) == 1:
        return same[0]
    return structs.replace(at_center(same), low_s=None, high_s=None)


def _style(look: Look, nth: int) -> dict[str, Any]:
    return {
        "color": COLOURS[look.place],
        "marker": MARKERS[look.mark],
        "markersize": 4,
        "linewidth": 1.4 if look.bright else 0.8,
        "linestyle": _DASHES[nth % len(_DASHES)],
        "alpha": None if look.bright else _DIM,
    }


def _label(row: Measurement) -> str:
    return " ".join(w for w in (marked(row), row.transport) if w) or algorithm_of(row)


def bound_of(row: Measurement, limit: float | None = None) -> float | None:
    """The upper bound of a row's busbw in bytes per second; None for a row without busbw.

    It comes from the row's own limit, the least time that the run's memory roofline allows;
    without one it is ``limit``.
    """
    if row.limit_s and row.time_s and row.busbw_bytes_per_s:
        return row.busbw_bytes_per_s * row.time_s / row.limit_s
    return limit if row.busbw_bytes_per_s else None


@dataclass(frozen=True)
class Trend:
    """A fitted model of a line: ``text``, and its ``times`` (seconds) at ``sizes`` (bytes)."""

    text: str
    sizes: tuple[float, ...]
    times: tuple[float, ...]


def fitted(rows: Sequence[Measurement]) -> Trend | None:
    """Fit time = alpha + beta x size in ranges of sizes, by `fit_curve` on each size's median.

    At most 64 sizes are used. None below four sizes, because a model fits three points too easily.
    """
    groups = grouped((r for r in rows if r.time_s), lambda r: r.size or 0)
    groups.pop(0, None)
    known = sorted(groups)
    known = known[:: -(-len(known) // _MOST_SIZES) or 1]
    if len(known) < 4:
        return None
    times = np.array([median(r.time_s or 0.0 for r in groups[size]) for size in known])
    curve = _fit(np.array(known, float), times)
    sizes = np.geomspace(known[0], known[-1], _POINTS)
    return Trend(_words(curve), tuple(sizes.tolist()), tuple(curve(sizes).tolist()))


def _fit(sizes: Floats, times: Floats) -> Curve:
    """The fit in ranges, or a single line if its error is smaller.

    A fitted curve never falls. If times do, as on a busy machine, the fit in ranges may end far
    above the times.
    """
    curves = (fit_curve(sizes, times[None]), fit_curve(sizes, times[None], most=0))
    return min(curves, key=lambda curve: float(np.square(curve(sizes) / times - 1).sum()))


def _words(curve: Curve) -> str:
    start, beta = format_seconds(curve.alpha[0]), curve.beta[-1]
    rate = f"{1 / beta / 1e9:.3g} GB/s" if beta else ""
    if not curve.edges:
        return start + (f" + size / {rate}" if rate else "")
    return ", ".join(w for w in (f"{start} first", rate and f"{rate} last") if w)
