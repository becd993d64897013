"""Statistics of iteration times: order statistics, and the two bandwidths. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import ceil, floor, sqrt

import numpy as np
from numpy.typing import NDArray

from collectives.model.fitting import alpha_beta
from reports.quantities import algbw, busbw
from reports.record import Result, Sample

Floats = NDArray[np.float64]

__all__ = ["alpha_beta", "bandwidths", "center", "interval", "interval_ranks", "relative_width"]


def interval(times: Sequence[float] | Floats) -> tuple[float, float] | None:
    """The 95 % confidence interval of the median, by ranks; None for fewer than six values.

    Ranks ⌊(n − 1.96√n)/2⌋ and ⌈1 + (n + 1.96√n)/2⌉ of the sorted values, counted from 1, kept
    inside 1 … n (Le Boudec; Hoefler, Belli 2015).
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


def relative_width(times: Sequence[float] | Floats) -> float:
    """The half-width of the median's interval relative to the median; infinite when unknown."""
    found = interval(times)
    middle = float(np.median(times)) if len(times) else 0.0
    if found is None or middle <= 0:
        return float("inf")
    return max(found[1] - middle, middle - found[0]) / middle


def center(sample: Sample, statistic: str = "median") -> float | None:
    """The time of a row in seconds: median (or mean) of its iterations; None when skipped."""
    if not sample.times:
        return None
    mean = statistic == "mean" or sample.timing == "loop"
    if mean:
        return float(np.mean(sample.times))
    ordered, n = sorted(sample.times), len(sample.times)
    # Several times as fast as numpy's for the few values that a row has.
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def bandwidths(result: Result, seconds: float) -> tuple[float, float]:
    """(algbw, busbw) in bytes per second: size / time, and that times the bus factor.

    nccl-tests, doc/PERFORMANCE.md.
    """
    rate = algbw(result.size, seconds, result.alg_factor)
    return rate, busbw(rate, result.bus_factor)
