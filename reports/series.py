"""What one line of a figure is: rows that differ in size only, its name, its colour, its fit.

Figures and pages share this, so that an algorithm has one colour in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from reports.readers.rows import Row
from reports.shown import seconds
from reports.statistics import alpha_beta

__all__ = ["COLOURS", "Fit", "algorithm_of", "colours", "fitted"]

#: Okabe and Ito's palette, which colour-blind readers tell apart, without its yellow (too pale on
#: white) and with a brown; black stands apart for the library's own collective, the base.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#000000")
_LIBRARY = len(COLOURS) - 1
_POINTS = 64


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


@dataclass(frozen=True)
class Fit:
    """The model of a line: ``text`` in words, and its ``times`` (seconds) at ``sizes`` (bytes)."""

    text: str
    sizes: tuple[float, ...]
    times: tuple[float, ...]


def fitted(rows: Sequence[Row]) -> Fit | None:
    """Time = alpha + beta x size through rows of one series; None where it cannot be told."""
    known = [(float(r.size), r.time_s) for r in rows if r.size and r.time_s]
    found = alpha_beta([s for s, _ in known], [t for _, t in known]) if known else None
    if found is None:
        return None
    alpha, beta = found
    sizes = np.geomspace(min(s for s, _ in known), max(s for s, _ in known), _POINTS)
    text = f"{seconds(alpha)}" + (f" + size / {1 / beta / 1e9:.3g} GB/s" if beta else "")
    return Fit(text, tuple(sizes.tolist()), tuple((alpha + beta * sizes).tolist()))


def shares(names: Mapping[str, int]) -> dict[str, int]:
    """How many names before it have the same colour: which dashes a name gets."""
    seen: dict[int, int] = {}
    found = {}
    for name, place in names.items():
        found[name] = seen.get(place, 0)
        seen[place] = found[name] + 1
    return found
