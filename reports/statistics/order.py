"""Statistics of a row: its time, how sure that is, and the two bandwidths. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from busbar.statistics import interval
from collectives.model.fitting import alpha_beta
from reports.records.record import Result, Sample
from reports.statistics.quantities import algbw, busbw

Floats = NDArray[np.float64]

__all__ = ["alpha_beta", "bandwidths", "center", "relative_width"]


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
    """(algbw, busbw) in bytes per second (nccl-tests, doc/PERFORMANCE.md)."""
    rate = algbw(result.size, seconds, result.alg_factor)
    return rate, busbw(rate, result.bus_factor)
