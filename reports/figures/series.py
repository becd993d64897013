"""A line of a figure: rows that differ in size only, with name, colour and fit.

Figures and pages share this, so that an algorithm has one colour in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from busbar.units import format_seconds
from collectives.predict.fit import fit_curve
from collectives.predict.machine import Curve
from reports.analysis.winners import winners
from reports.records.cores import marked
from reports.records.measurement import LIBRARY, Measurement, grouped

#: Okabe and Ito's palette, which colour-blind readers tell apart, without its yellow (too pale on
#: white) and with a brown; black stands apart for the library's own collective, the base.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#000000")
_LIBRARY = len(COLOURS) - 1
MARKERS = "osD^vPX*<>phdH8"
#: What is no series: bounds and expectations.
QUIET = "#555555"
#: Algorithms that stand out beside the library's where there are more than colours.
_MOST_LEADING = 3
_DIM = 0.35
_DASHES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)))
_POINTS = 64
Floats = NDArray[np.float64]
_MOST_SIZES = 64


def algorithm_of(row: Measurement) -> str:
    """The key of a colour: the algorithm, or the library with its own choice."""
    return row.algorithm or row.run.library or "measured"


class Look(NamedTuple):
    """How an algorithm looks in every figure of an input.

    ``place`` in ``COLOURS``; ``mark`` in ``MARKERS``, which no other algorithm has; ``bright``:
    not dimmed.
    """

    place: int
    mark: int
    bright: bool


def looks(rows: Sequence[Measurement]) -> dict[str, Look]:
    """The look of each algorithm of these rows."""
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

    All, as long as each can have a colour of its own; else the library's, and the three that are
    the fastest most often.
    """
    names = {algorithm_of(r) for r in rows}
    if len(names) <= len(COLOURS):
        return names
    won = Counter(algorithm_of(w.row) for cells in winners(rows).values() for w in cells.values())
    return {name for name, _ in won.most_common(_MOST_LEADING)} | ({LIBRARY} & names)


def colours(names: Iterable[str], first: Collection[str] = ()) -> dict[str, int]:
    """Each name's place in ``COLOURS``; from the name itself, so that runs agree where they can.

    Names that want one place take the next free one, those in ``first`` before the others and
    else in alphabetical order. From the eighth name on places are shared.
    """
    numbers: dict[str, int] = {}
    for name in sorted(set(names), key=lambda name: (name not in first, name)):
        if name == LIBRARY:
            numbers[name] = _LIBRARY
            continue
        wanted = crc32(name.encode()) % _LIBRARY
        free = [p % _LIBRARY for p in range(wanted, wanted + _LIBRARY)]
        taken = list(numbers.values())
        numbers[name] = min(free, key=taken.count)  # the first of the least taken
    return numbers


@dataclass(frozen=True)
class PlotLine:
    """Rows that one line joins, with the style of that line. ``bright``: not dimmed."""

    name: str
    rows: tuple[Measurement, ...]
    style: Mapping[str, Any]
    bright: bool

    def placed(self, placement: str) -> PlotLine:
        """The rows of one placement."""
        return replace(self, rows=tuple(r for r in self.rows if r.placement == placement))


@dataclass(frozen=True)
class Palette:
    """The look of every algorithm of the input, whatever part of it a figure shows."""

    looks: Mapping[str, Look]

    @staticmethod
    def of(rows: Sequence[Measurement]) -> Palette:
        """The palette for these rows."""
        return Palette(looks(rows))

    def series(self, rows: Sequence[Measurement], ranks: bool = False) -> list[PlotLine]:
        """Rows by what a line joins, in order of size (of ranks when ``ranks``).

        Runs of one input are one series as long as no point comes twice, as in a script's sweep.
        """

        def along(r: Measurement) -> int:
            return (r.ranks if ranks else r.size) or 0

        points = [(_label(r), along(r), r.size, r.placement) for r in rows]
        repeated = len(set(points)) < len(points)
        several = len({r.run.source for r in rows}) > 1
        groups: dict[str, list[Measurement]] = {}
        for r in sorted(rows, key=along):
            run = (f"{r.run.source} " if several else "") + f"run {r.run.number}"
            groups.setdefault(f"{_label(r)} ({run})" if repeated else _label(r), []).append(r)
        seen: dict[int, int] = {}
        series = []
        for name, members in groups.items():
            look = self.looks[algorithm_of(members[0])]
            seen[look.place] = seen.get(look.place, -1) + 1
            style = _style(look, seen[look.place])
            if members[0].worksharing:
                name, style = f"bound: {name}", {**style, "color": QUIET}
            series.append(PlotLine(name, tuple(members), style, look.bright))
        return series


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
    """The busbw, in bytes per second, that the row cannot pass.

    That of the row's own limit, the least time that its run's memory roofline allows; else
    ``limit``.
    """
    if row.limit_s and row.time_s and row.busbw_bytes_per_s:
        return row.busbw_bytes_per_s * row.time_s / row.limit_s
    return limit if row.busbw_bytes_per_s else None


@dataclass(frozen=True)
class Trend:
    """The model of a line: ``text`` in words, and its ``times`` (seconds) at ``sizes`` (bytes)."""

    text: str
    sizes: tuple[float, ...]
    times: tuple[float, ...]


def fitted(rows: Sequence[Measurement]) -> Trend | None:
    """Time = alpha + beta x size, in as many ranges of the size as times ask for.

    By `fit_curve` through the median of each size, of many sizes through some of them.
    None below four sizes: through three points nearly any line goes.
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
    """The fit in ranges, or one line where that errs less.

    A curve of the model never falls; times that do, as those of a busy machine, may leave it far
    above its own last ranges.
    """
    curves = (fit_curve(sizes, times[None]), fit_curve(sizes, times[None], most=0))
    return min(curves, key=lambda curve: float(np.square(curve(sizes) / times - 1).sum()))


def _words(curve: Curve) -> str:
    start, beta = format_seconds(curve.alpha[0]), curve.beta[-1]
    rate = f"{1 / beta / 1e9:.3g} GB/s" if beta else ""
    if not curve.edges:
        return start + (f" + size / {rate}" if rate else "")
    return ", ".join(w for w in (f"{start} first", rate and f"{rate} last") if w)
