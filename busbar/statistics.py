"""The interval of a median by order statistics, which assume no distribution. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# From how many values on a series is cut into how many parts, and the square of Student's t for so
# many over that of a normal deviate, 1.96. Four parts hold levels that last long, which machines
# have; fewer than 60 values are too few for them.
_PARTS = ((60, 4, 2.636), (20, 7, 1.559))
# An interval needs so many values.
_LEAST = 6
# Series of so many are long enough for the correlation of signs.
_MANY = 60
# Where else than at the median neighbours are compared: the true one may lie there.
_BESIDE = (0.3, 0.7)
# A correlation above this is not told from it, in series as long as rows are.
_MOST_ALIKE = 0.98


def interval(times: Sequence[float] | Floats) -> tuple[float, float] | None:
    """The 95 % confidence interval of the median; None for fewer than six values.

    See `intervals`, of which this is the one of a single series.
    """
    values = np.asarray(times, dtype=float)
    if len(values) < _LEAST:
        return None
    low, high, _ = intervals(values[None])
    return float(low[0]), float(high[0])


def intervals(rows: Floats) -> tuple[Floats, Floats, Floats]:
    """The ends of the 95 % confidence intervals of the medians of series, and the sorted series.

    The ends are NaN below six values.

    ``rows``: a series a row, in the order in which they were measured. The ends are values number
    ⌊(n − h)/2⌋ and ⌈1 + (n + h)/2⌉ of n sorted ones, kept inside 1 … n, with h = 1.96 √(n f) (Le
    Boudec 2010; Hoefler, Belli 2015). f is how many values count for one independent one
    (`dependence`). Where h is above n, the series counts for fewer than four independent values,
    and what it has of the distribution is less than the interval. The ends then lie h / n times as
    far from the median as the least and the greatest value: the lower one on a scale of logarithms
    if values are positive.
    """
    count, n = rows.shape
    if n < _LEAST:
        return np.full(count, np.nan), np.full(count, np.nan), np.sort(rows, axis=1)
    order = np.argsort(rows, axis=1, kind="stable")
    ordered, each = np.take_along_axis(rows, order, axis=1), np.arange(count)
    half = 1.96 * np.sqrt(n * dependence(rows, order, ordered))
    first = np.maximum(1, np.floor((n - half) / 2)).astype(int) - 1
    last = np.minimum(n, np.ceil(1 + (n + half) / 2)).astype(int) - 1
    low, high = ordered[each, first], ordered[each, last]
    (wider,) = np.nonzero(half > n)
    if len(wider):
        middle, times = np.median(ordered[wider], axis=1), half[wider] / n
        high[wider] = middle + times * (high[wider] - middle)
        below, positive = low[wider], low[wider] > 0
        share = np.where(positive, below, 1) / np.where(positive, middle, 1)
        low[wider] = np.where(positive, middle * share**times, middle - times * (middle - below))
    return low, high, ordered


def dependence(rows: Floats, order: NDArray[np.intp], ordered: Floats) -> Floats:
    """How many values of each series count for one independent one, for its median; at least 1.

    ``rows``: a series a row, in the order in which they were measured; ``order``: what sorts them;
    ``ordered``: the sorted series.
    The variance of a sample median is that of the share of values below it, so all is done with the
    signs of the values' distances from the median. f is the greater of two figures, one of long
    stretches and one of neighbours. Both are always taken: an interval that is widened only where a
    test finds a reason holds the median less often than it says.
    """
    n = rows.shape[1]
    likeness = _of_ranks(rows, order, ordered)
    if n < _PARTS[-1][0]:  # too few for parts
        return np.asarray(np.maximum(1, (1 + likeness) / (1 - likeness)))
    median = (ordered[:, (n - 1) // 2] + ordered[:, n // 2]) / 2
    middle = np.sign(rows - median[:, None])
    if n >= _MANY:
        cuts = np.quantile(rows, _BESIDE, axis=1)[..., None]
        series = [middle, *np.sign(rows - cuts)]
        likeness = np.max([_of_values(rows), *map(_of_signs, series)], axis=0)
    return np.asarray(np.maximum(1, np.maximum(_of_parts(middle), (1 + likeness) / (1 - likeness))))


def _of_parts(signs: Floats) -> Floats:
    """F from batch means: a series is cut into few parts, and the parts' means are compared.

    With Student's t for so many (Law and Carson 1979; Ibragimov and Müller 2010 for why few).
    """
    count, n = signs.shape
    parts, student = next((p, t) for least, p, t in _PARTS if n >= least)
    length = n // parts
    means = signs[:, : parts * length].reshape(count, parts, length).mean(axis=2)
    return np.asarray(student * length * (means**2).sum(axis=1) / (parts - 1))


def _of_signs(signs: Floats) -> Floats:
    """The correlation r of neighbours in a first-order autoregression, from their signs.

    Signs have the correlation q = 2 asin(r) / π (Sheppard 1899). That finds levels as well, of
    which each holds for a while: they are much of the signs, however small a part of the values.
    """
    off = signs - signs.mean(axis=1, keepdims=True)
    q = _correlation(off)
    return np.asarray(np.minimum(_MOST_ALIKE, np.sin(np.pi / 2 * q)))


def _of_ranks(rows: Floats, order: NDArray[np.intp], ordered: Floats) -> Floats:
    """The correlation of neighbours' ranks, for short series, whose signs tell too little."""
    ranks = np.empty(rows.shape)
    np.put_along_axis(ranks, order, np.arange(rows.shape[1], dtype=float), axis=1)
    (tied,) = np.nonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
    if len(tied):  # equal values share the middle of their ranks
        last = np.argsort(np.argsort(rows[tied, ::-1], axis=1, kind="stable"), axis=1)[:, ::-1]
        ranks[tied] = (ranks[tied] + last) / 2
    off = ranks - (rows.shape[1] - 1) / 2
    return np.asarray(np.minimum(_MOST_ALIKE, _correlation(off)))


def _of_values(rows: Floats) -> Floats:
    """The correlation of neighbours' values: of levels far apart where most values are of one."""
    off = rows - rows.mean(axis=1, keepdims=True)
    return np.asarray(np.minimum(_MOST_ALIKE, _correlation(off)))


def _correlation(off: Floats) -> Floats:
    """The correlation of neighbours with its error, −1 … 1, from distances to the middle.

    The standard error is added, of long series 1.64 times, so that what chance made unlike counts
    for no more than it may. Corrected for the bias in short series, −(1 + 3r)/n (Kendall 1954). −1
    where all values are equal.
    """
    n, squares = off.shape[1], (off * off).sum(axis=1)
    r = (off[:, 1:] * off[:, :-1]).sum(axis=1) / np.where(squares > 0, squares, 1)
    r = r + (1 + 3 * np.maximum(0, r)) / n
    error = np.sqrt(np.maximum(0, 1 - r * r) / n)
    r = r + (1.64 if n >= _MANY else 1.0) * error
    return np.asarray(np.where(squares > 0, np.clip(r, -1, 1), -1))
