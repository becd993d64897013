"""Formulas of the derived quantities (algbw, busbw, speed-up, efficiency, …). Pure; no I/O.

Units are seconds, bytes, bytes per second, joules; docs/measuring-statistics.md derives the
formulas. A function raises ValueError if a figure that must be positive is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from statistics import median

import numpy as np
from numpy.typing import NDArray

from busbar.statistics import interval
from busbar.units import Digits, format_percent
from reports.records.measurement import Record

Floats = NDArray[np.float64]

#: Size in bytes below which busbw has no meaning, because a call takes its latency.
LATENCY_BOUND = 64 * 1024
#: A share of the limit above this is no figure: the limit was measured in another state.
BEYOND_LIMIT = 1.5


def _positive(**figures: float) -> None:
    for name, value in figures.items():
        if not value > 0:
            raise ValueError(f"{name} is {value}, which must be positive")


def algbw(size: float, seconds: float, share: float = 1.0) -> float:
    """Bytes per second: size / time (nccl-tests, doc/PERFORMANCE.md); infinite for a time of 0.

    ``share``: the share of the size that counts; 1 except for nccl-tests' hypercube.
    """
    return share * size / seconds if seconds > 0 else inf


def busbw(algbw: float, factor: float) -> float:
    """The rate per rank's port with an optimal algorithm: algbw x bus factor (same source)."""
    return algbw * factor


def of_limit(seconds: float, least: float) -> float:
    """The share of a bound that is reached: least possible time / time; 1 is the bound itself."""
    _positive(seconds=seconds, least=least)
    return least / seconds


def limit_text(share: float | None, digits: Digits = ".1f") -> str:
    """A share of the limit in per cent; empty for None, ``>150%`` above what may be explained."""
    if share is not None and share > BEYOND_LIMIT:
        return f">{100 * BEYOND_LIMIT:.0f}%"
    return format_percent(share, digits)


def speedup(base: float, throughput: float) -> float:
    """Throughput over that of the base case. Whoever prints it must state the base case."""
    _positive(base=base, throughput=throughput)
    return throughput / base


def efficiency(base: float, throughput: float, n: float) -> float:
    """Throughput on n ranks over n x throughput on 1 (``base``); 1 is a perfect speed-up.

    For weak scaling (the same work on every rank) it is t(1) / t(n).
    """
    _positive(base=base, throughput=throughput, n=n)
    return throughput / (n * base)


def joules_per_gb(joules: float, nbytes: float) -> float:
    """Energy of an operation over its size in GB (10^9 bytes)."""
    _positive(nbytes=nbytes)
    return joules / (nbytes / 1e9)


def relative_width(times: Sequence[float] | Floats) -> float:
    """The half-width of the median's interval relative to the median; infinite if unknown."""
    ends = interval(times)
    middle = float(np.median(times)) if len(times) else 0.0
    if ends is None or middle <= 0:
        return float("inf")
    return max(ends[1] - middle, middle - ends[0]) / middle


def is_mean_of_parts(one: Record) -> bool:
    """True if the time is the mean of back-to-back iterations, known in several parts."""
    return one.timing == "loop" and len(one.times_s) > 1


def center(one: Record, statistic: str = "median") -> float | None:
    """The time of a row in seconds: median (or mean) of its iterations; None without any."""
    if not one.times_s:
        return None
    mean = statistic == "mean" or one.timing == "loop"
    # The standard library's median is several times as fast as numpy's for few values.
    return float(np.mean(one.times_s)) if mean else median(one.times_s)


def bandwidths(one: Record, seconds: float) -> tuple[float, float]:
    """(algbw, busbw) in bytes per second (nccl-tests, doc/PERFORMANCE.md)."""
    rate = algbw(one.size or 0, seconds, one.alg_factor)
    return rate, busbw(rate, one.bus_factor or 0.0)
