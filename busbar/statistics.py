"""The interval of a median by order statistics, which assume no distribution. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import ceil, floor, sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Below this the order of values says nothing that chance could not.
_ORDERED = 20
_MOST_LAGS = 60
# Parts that a series is cut into, from how many values on; how much more their shares differ than
# chance lets them, which finds a seventh of independent series; and the square of Student's t for
# so many parts over that of a normal deviate, 1.96.
_PARTS = ((5, 2.2, 2.01), (10, 1.6, 1.33))
_CUT = 60
# As few independent values as a series counts for at the least: an interval needs six.
_LEAST = 6


def interval(times: Sequence[float] | Floats) -> tuple[float, float] | None:
    """The 95 % confidence interval of the median, by ranks; None for fewer than six values.

    Ranks ⌊(n − 1.96√(n f))/2⌋ and ⌈1 + (n + 1.96√(n f))/2⌉ of the sorted values, counted from 1,
    kept inside 1 … n (Le Boudec 2010; Hoefler, Belli 2015). f is 1 for values that are independent
    in the order in which they stand, and more where neighbours are alike, or levels change from
    one part of the series to the next (`dependence`).
    """
    values = np.asarray(times, dtype=float)
    found = interval_ranks(len(values), float(dependence(values[None])[0]))
    if found is None:
        return None
    values = np.partition(values, found)
    return float(values[found[0]]), float(values[found[1]])


@cache
def interval_ranks(n: int, factor: float = 1.0) -> tuple[int, int] | None:
    """Where the interval's ends stand in n sorted values, counted from 0; None below six.

    ``factor``: how many values count for one independent one.
    """
    if n < _LEAST:
        return None
    half = 1.96 * sqrt(n * factor)
    low = max(1, floor((n - half) / 2))
    high = min(n, ceil(1 + (n + half) / 2))
    return low - 1, high - 1


def dependence(rows: Floats) -> Floats:
    """How many values of each series count for one independent one, for its median; at least 1.

    What neighbours have in common (`correlation`), or what whole parts of a series have
    (`wander`), whichever is more. ``rows``: a series a row, in the order in which they were
    measured.
    """
    return np.maximum(correlation(rows), wander(rows))


def wander(rows: Floats) -> Floats:
    """As `dependence`, from how much fifths and tenths of a series differ; 1 below 60 values.

    Batch means (Law and Carson 1979) of being above or below the median, with Student's t for the
    number of parts: it sees levels that last longer than correlations can be summed. 1 where the
    parts differ no more than chance lets them.
    """
    count, n = rows.shape
    found = np.ones(count)
    if n < _CUT:
        return found
    signs = np.sign(rows - np.median(rows, axis=1, keepdims=True))
    differ, factors = np.zeros(count, np.bool_), []
    for parts, most, student in _PARTS:
        length = n // parts
        means = signs[:, : parts * length].reshape(count, parts, length).mean(axis=2)
        factor = length * (means**2).sum(axis=1) / (parts - 1)
        differ |= factor > most
        factors.append(factor * student)
    found[differ] = np.maximum.reduce(factors)[differ]
    return _tenths(np.maximum(found, 1), n)


def correlation(rows: Floats) -> Floats:
    """As `dependence`, from the correlations of neighbours.

    The variance of a sample median is that of the share of values below it: f = 1 + 2 Σ ρ(k) over
    the autocorrelations of being above or below the median, as far as they are positive beyond
    chance (Geyer 1992 for where to stop). Where the first is not beyond chance, and for fewer than
    20 values, f is 1.
    """
    count, n = rows.shape
    found = np.ones(count)
    if n < _ORDERED:
        return found
    signs = np.sign(rows - np.median(rows, axis=1, keepdims=True))
    squares = (signs**2).sum(axis=1)
    goes_on = np.flatnonzero(squares > 0)
    chance = 1 / sqrt(n)
    for lag in range(1, min(_MOST_LAGS, n // 4) + 1):
        part = signs[goes_on]
        rho = (part[:, lag:] * part[:, :-lag]).sum(axis=1) / squares[goes_on] + 1 / n
        kept = rho > (2 * chance if lag == 1 else chance)
        goes_on = goes_on[kept]
        if not len(goes_on):
            break
        found[goes_on] += 2 * rho[kept]
    return _tenths(found, n)


def _tenths(found: Floats, n: int) -> Floats:
    """A tenth, so that not every series has ranks of its own (`interval_ranks` keeps them)."""
    return np.asarray(np.minimum(np.round(found, 1), max(1.0, n / _LEAST)))
