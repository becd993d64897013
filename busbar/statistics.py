"""The interval of a median by order statistics, which assume no distribution. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import ceil, floor, sqrt

import numpy as np
from numpy.typing import NDArray

__all__ = ["interval", "interval_ranks"]


def interval(times: Sequence[float] | NDArray[np.float64]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the median, by ranks; None for fewer than six values.

    Ranks ⌊(n − 1.96√n)/2⌋ and ⌈1 + (n + 1.96√n)/2⌉ of the sorted values, counted from 1, kept
    inside 1 … n (Le Boudec 2010; Hoefler, Belli 2015).
    """
    found = interval_ranks(len(times))
    if found is None:
        return None
    if isinstance(times, np.ndarray):
        times = np.partition(times, found)
        return float(times[found[0]]), float(times[found[1]])
    ordered = sorted(times)  # several times as fast as numpy's for the few values that a row has
    return float(ordered[found[0]]), float(ordered[found[1]])


@cache
def interval_ranks(n: int) -> tuple[int, int] | None:
    """Where the interval's ends stand in n sorted values, counted from 0; None below six."""
    if n < 6:
        return None
    low = max(1, floor((n - 1.96 * sqrt(n)) / 2))
    high = min(n, ceil(1 + (n + 1.96 * sqrt(n)) / 2))
    return low - 1, high - 1
