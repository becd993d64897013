"""What one line of a figure is: rows that differ in size only, its name, its colour, its fit.

Figures and pages share this, so that an algorithm has one colour in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from collectives.model.costs import Curve
from collectives.model.fitting import fit
from reports.records.rows import Row
from reports.records.shown import seconds

#: Okabe and Ito's palette, which colour-blind readers tell apart, without its yellow (too pale on
#: white) and with a brown; black stands apart for the library's own collective, the base.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#000000")
_LIBRARY = len(COLOURS) - 1
_POINTS = 64
Floats = NDArray[np.float64]
_MOST_SIZES = 64


def algorithm_of(row: Row) -> str:
    """What has one colour: the algorithm, or the library that took its own choice."""
    return row.algorithm or row.run.library or "measured"


def colours(names: Iterable[str]) -> dict[str, int]:
    """Each name's place in ``COLOURS``; from the name itself, so that runs agree where they can.

    Names that want one place take the next free one, in alphabetical order; from the eighth name
    on places are shared and the line's dashes tell them apart.
    """
    given: dict[str, int] = {}
    for name in sorted(set(names)):
        if name == "library":
            given[name] = _LIBRARY
            continue
        wanted = crc32(name.encode()) % _LIBRARY
        free = [p % _LIBRARY for p in range(wanted, wanted + _LIBRARY)]
        taken = list(given.values())
        given[name] = min(free, key=taken.count)  # the first of the least taken
    return given


def bound_of(row: Row, limit: float | None = None) -> float | None:
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


def fitted(rows: Sequence[Row]) -> Trend | None:
    """Time = alpha + beta x size, in as many ranges of the size as times ask for.

    None below four sizes: through three points nearly any line goes.

    By `collectives.model.fitting.fit` through the median of each size, of many sizes through some.
    """
    groups: dict[int, list[float]] = {}
    for r in rows:
        if r.size and r.time_s:
            groups.setdefault(r.size, []).append(r.time_s)
    known = sorted(groups)
    known = known[:: -(-len(known) // _MOST_SIZES) or 1]
    if len(known) < 4:
        return None
    times = np.array([median(groups[size]) for size in known])
    curve = _fit(np.array(known, float), times)
    sizes = np.geomspace(known[0], known[-1], _POINTS)
    return Trend(_words(curve), tuple(sizes.tolist()), tuple(curve(sizes).tolist()))


def _fit(sizes: Floats, times: Floats) -> Curve:
    """The fit in ranges, or one line where that errs less.

    A curve of the model never falls; times that do, as those of a busy machine, may leave it far
    above its own last ranges.
    """
    curves = (fit(sizes, times[None]), fit(sizes, times[None], most=0))
    return min(curves, key=lambda curve: float(np.square(curve(sizes) / times - 1).sum()))


def _words(curve: Curve) -> str:
    start, beta = seconds(curve.alpha[0]), curve.beta[-1]
    rate = f"{1 / beta / 1e9:.3g} GB/s" if beta else ""
    if not curve.edges:
        return start + (f" + size / {rate}" if rate else "")
    return ", ".join(w for w in (f"{start} first", rate and f"{rate} last") if w)
