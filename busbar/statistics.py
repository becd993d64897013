"""Confidence intervals of medians by order statistics, which assume no distribution; of means.

Means have theirs by Student's t.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import atan, cos, pi, sin, sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# (least number of values, number of parts that a series is cut into, (t / 1.96)²), with Student's t
# for that many parts. Four long parts show levels that last long, which machines have; for series
# of fewer than 60 values they would be too short.
_PARTS = ((60, 4, 2.636), (20, 7, 1.559))
# The least number of values for an interval.
_LEAST = 6
# The least number of values for the correlation of signs.
_MANY = 60
# Quantiles at which successive values are compared, too: the true median may lie between them.
_BESIDE = (0.3, 0.7)
# The largest correlation that is used: series are too short to tell larger ones apart.
_MOST_ALIKE = 0.98
# The lower end of an interval over the median, at least.
_LOWEST = 1e-4
#: Of a 95 % interval, on either side.
TAIL = 0.025


def interval(times: Sequence[float] | Floats) -> tuple[float, float] | None:
    """The 95 % confidence interval of the median of one series; None for fewer than six values.

    `intervals` does the same for many series.
    """
    values = np.asarray(times, dtype=float)
    if len(values) < _LEAST:
        return None
    low, high, _ = intervals(values[None])
    return float(low[0]), float(high[0])


def robust_scatter(deviations: Sequence[float] | Floats) -> float:
    """The standard deviation of normal values, from their deviations from the median (MAD)."""
    return 1.4826 * float(np.median(np.abs(np.asarray(deviations, dtype=float))))


def robust_test(
    effect: float, own: int, others: NDArray[np.float64], least: float = 0.0
) -> tuple[float, float]:
    """Whether a median of ``own`` values that is above others' by ``effect`` is so by chance.

    ``others``: deviations of the others from their median; ``least``: least standard deviation.
    Returns the standard error of the effect and the one-sided p of Student's t.
    """
    scatter, count = max(least, robust_scatter(others)), len(others)
    # Medians of normal values vary by pi / 2 more than means.
    error = scatter * sqrt(pi / 2 * (1 / own + 1 / count))
    return error, student_p(effect / error, count - 1)


def intervals(rows: Floats) -> tuple[Floats, Floats, Floats]:
    """The ends of the 95 % confidence intervals of the medians of series, and the sorted series.

    The ends are NaN for fewer than six values.

    ``rows``: one series per row, in the order of measurement. The ends are the values number
    ⌊(n − h)/2⌋ and ⌈1 + (n + h)/2⌉ of the n sorted values, limited to 1 … n, with h = 1.96 √(n f)
    (Le Boudec 2010; Hoefler, Belli 2015). f values are worth one independent value (`dependence`).
    If h > n, the series is worth fewer than four independent values, and the interval is wider than
    the range of the values. The ends are then h / n times as far from the median as the smallest
    and the largest value; for the lower end of positive values, on a logarithmic scale, and no
    farther below the median than a factor of 10⁴ or the smallest value.
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
        share = np.maximum(share**times, np.minimum(share, _LOWEST))
        farther = np.where(positive, middle * share, middle - times * (middle - below))
        low[wider] = np.minimum(below, farther)  # rounding may put it above the smallest value
    return low, high, ordered


def dependence(rows: Floats, order: NDArray[np.intp], ordered: Floats) -> Floats:
    """For each series f: so many correlated values are worth one independent value; at least 1.

    ``rows``: one series per row, in the order of measurement; ``order``: the indices that sort each
    series; ``ordered``: the sorted series.
    The variance of a sample median follows from that of the share of values below it, so f is
    estimated from the signs of the distances from the median. f is the larger of two estimates, one
    from long parts and one from successive values. Both are always used: an interval that is wider
    only if a test finds correlation covers the median less often than in 95 % of cases.
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
    """Estimate f from batch means: cut each series into few parts and compare the parts' means.

    Student's t accounts for the few parts (Law and Carson 1979; Ibragimov and Müller 2010).
    """
    count, n = signs.shape
    parts, student = next((p, t) for least, p, t in _PARTS if n >= least)
    length = n // parts
    means = signs[:, : parts * length].reshape(count, parts, length).mean(axis=2)
    return np.asarray(student * length * (means**2).sum(axis=1) / (parts - 1))


def _of_signs(signs: Floats) -> Floats:
    """The correlation r of successive values in a first-order autoregression, from their signs.

    The signs have the correlation q = 2 asin(r) / π (Sheppard 1899). Signs also show levels that
    last for a while, even if the levels differ little compared with the spread of the values.
    """
    off = signs - signs.mean(axis=1, keepdims=True)
    q = _correlation(off)
    return np.asarray(np.minimum(_MOST_ALIKE, np.sin(np.pi / 2 * q)))


def _of_ranks(rows: Floats, order: NDArray[np.intp], ordered: Floats) -> Floats:
    """The correlation of successive values' ranks, for short series: signs are too coarse there."""
    ranks = np.empty(rows.shape)
    np.put_along_axis(ranks, order, np.arange(rows.shape[1], dtype=float), axis=1)
    (tied,) = np.nonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
    if len(tied):  # equal values share the middle of their ranks
        last = np.argsort(np.argsort(rows[tied, ::-1], axis=1, kind="stable"), axis=1)[:, ::-1]
        ranks[tied] = (ranks[tied] + last) / 2
    off = ranks - (rows.shape[1] - 1) / 2
    return np.asarray(np.minimum(_MOST_ALIKE, _correlation(off)))


def _of_values(rows: Floats) -> Floats:
    """The correlation of successive values. It shows rare levels that are far from the others."""
    off = rows - rows.mean(axis=1, keepdims=True)
    return np.asarray(np.minimum(_MOST_ALIKE, _correlation(off)))


def _correlation(off: Floats) -> Floats:
    """An upper estimate of the correlation of successive values, from distances to the mean.

    The standard error is added (for long series 1.64 of them), so that a correlation that is small
    by chance is not underestimated. The bias in short series, −(1 + 3r)/n, is corrected (Kendall
    1954). The result is −1 … 1; −1 if all values are equal.
    """
    n, squares = off.shape[1], (off * off).sum(axis=1)
    r = (off[:, 1:] * off[:, :-1]).sum(axis=1) / np.where(squares > 0, squares, 1)
    r = r + (1 + 3 * np.maximum(0, r)) / n
    error = np.sqrt(np.maximum(0, 1 - r * r) / n)
    r = r + (1.64 if n >= _MANY else 1.0) * error
    return np.asarray(np.where(squares > 0, np.clip(r, -1, 1), -1))


def mean_interval(values: Sequence[float] | Floats) -> tuple[float, float] | None:
    """The 95 % interval of the mean of independent values; None for fewer than six values.

    `mean_intervals` does the same for many series.
    """
    if len(values) < _LEAST:
        return None
    low, high = mean_intervals(np.asarray(values, dtype=float)[None])
    return float(low[0]), float(high[0])


def mean_intervals(rows: Floats) -> tuple[Floats, Floats]:
    """The ends of the 95 % intervals of the means of series, one series per row, by Student's t.

    The values of a series must be independent and nearly normal, as means of many iterations are.
    The ends are NaN for fewer than six values.
    """
    count, n = rows.shape
    if n < _LEAST:
        return np.full(count, np.nan), np.full(count, np.nan)
    mean = rows.mean(axis=1)
    half = student_quantile(TAIL, n - 1) * rows.std(axis=1, ddof=1) / sqrt(n)
    return mean - half, mean + half


def student_p(t: float, k: int) -> float:
    """The probability that Student's t with k degrees of freedom is above ``t``.

    By the finite sums for whole k in Abramowitz, Stegun, "Handbook of Mathematical Functions",
    26.7.3 and 26.7.4. Raises ValueError for k below 1.
    """
    if k < 1:
        raise ValueError(f"{k} degrees of freedom")
    theta = atan(abs(t) / sqrt(k))
    cosine = cos(theta) ** 2
    term, total = 1.0, 0.0
    if k % 2:
        term = cos(theta)
        for i in range(1, (k + 1) // 2):
            total += term
            term *= cosine * 2 * i / (2 * i + 1)
        inside = (theta + sin(theta) * total) * 2 / pi
    else:
        for i in range(1, k // 2 + 1):
            total += term
            term *= cosine * (2 * i - 1) / (2 * i)
        inside = sin(theta) * total
    tail = max(0.0, 1 - inside) / 2
    return tail if t >= 0 else 1 - tail


def student_quantile(tail: float, k: int) -> float:
    """The t that Student's t with k degrees of freedom exceeds with probability ``tail`` < 1/2."""
    low, high = 0.0, 1.0
    while student_p(high, k) > tail:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, k) > tail else (low, middle)
    return high
