"""The interval of a median by order statistics, which assume no distribution. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import ceil, floor, sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# From how many values on a series is cut into how many parts, and the square of Student's t for so
# many over that of a normal deviate, 1.96. Four parts hold levels that last long, which machines
# have; fewer than 60 values are too few for them.
_PARTS = ((60, 4, 2.636), (20, 7, 1.559))
# As few independent values as a series counts for at the least: an interval needs six.
_LEAST = 6


def interval(times: Sequence[float] | Floats) -> tuple[float, float] | None:
    """The 95 % confidence interval of the median, by ranks; None for fewer than six values.

    Ranks ⌊(n − 1.96√(n f))/2⌋ and ⌈1 + (n + 1.96√(n f))/2⌉ of the sorted values, counted from 1,
    kept inside 1 … n (Le Boudec 2010; Hoefler, Belli 2015). f is how many values count for one
    independent one (`dependence`).
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

    ``rows``: a series a row, in the order in which they were measured. Below 20 values it is 1.
    The variance of a sample median is that of the share of values below it. It comes from batch
    means: a series is cut into few parts, and the shares of the parts are compared, with Student's
    t for so many (Law and Carson 1979; Ibragimov and Müller 2010 for why few). This is always done:
    an interval that is widened only where a test finds a reason holds the median less often than
    it says.
    """
    count, n = rows.shape
    parts, student = next(((p, t) for least, p, t in _PARTS if n >= least), (0, 0.0))
    if not parts:
        return np.ones(count)
    length = n // parts
    signs = np.sign(rows - np.median(rows, axis=1, keepdims=True))
    means = signs[:, : parts * length].reshape(count, parts, length).mean(axis=2)
    found = student * length * (means**2).sum(axis=1) / (parts - 1)
    # A tenth, so that not every series has ranks of its own (`interval_ranks` keeps them).
    return np.asarray(np.clip(np.round(found, 1), 1, max(1.0, n / _LEAST)))
