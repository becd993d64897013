"""The quantities of the field, one function each; docs/measuring.md derives them. Pure; no I/O.

Seconds, bytes, bytes per second, joules. Every function raises ValueError where its formula has no
meaning: nothing measured, or a figure that must be positive and is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import ceil, exp, floor, inf, lgamma, log, sqrt

__all__ = [
    "algbw",
    "busbw",
    "efficiency",
    "joules_per_gb",
    "mean_cost",
    "mean_rate",
    "mean_ratio",
    "of_limit",
    "quantile",
    "quantile_interval",
    "scaling_efficiency",
    "speedup",
]


def _positive(**figures: float) -> None:
    for name, value in figures.items():
        if not value > 0:
            raise ValueError(f"{name} is {value}, which must be positive")


def algbw(size: float, seconds: float, share: float = 1.0) -> float:
    """Bytes per second: size / time (nccl-tests, doc/PERFORMANCE.md); infinite in no time.

    ``share``: of the size that counts, 1 but for nccl-tests' hypercube.
    """
    return share * size / seconds if seconds > 0 else inf


def busbw(algbw: float, factor: float) -> float:
    """The rate of each rank's port if nothing is wasted: algbw x bus factor (same source)."""
    return algbw * factor


def of_limit(seconds: float, least: float) -> float:
    """The share of a bound that is reached: least possible time / time; 1 is the bound itself."""
    _positive(seconds=seconds, least=least)
    return least / seconds


def speedup(base: float, throughput: float) -> float:
    """Throughput over that of the base case, which must be named beside it."""
    _positive(base=base, throughput=throughput)
    return throughput / base


def efficiency(base: float, throughput: float, n: float) -> float:
    """Throughput on n over n x throughput on 1 (``base``); 1 is a perfect speed-up."""
    _positive(base=base, throughput=throughput, n=n)
    return throughput / (n * base)


def scaling_efficiency(seconds_1: float, seconds_n: float) -> float:
    """t(1) / t(N) for the same work on every rank (weak scaling); 1 when more ranks cost nothing."""
    _positive(seconds_1=seconds_1, seconds_n=seconds_n)
    return seconds_1 / seconds_n


def joules_per_gb(joules: float, nbytes: float) -> float:
    """Energy of an operation over its size in GB (10^9 bytes)."""
    _positive(nbytes=nbytes)
    return joules / (nbytes / 1e9)


def mean_cost(costs: Sequence[float]) -> float:
    """The arithmetic mean, which costs (seconds, joules) have because their sum has a meaning."""
    if not costs:
        raise ValueError("no costs to average")
    return sum(costs) / len(costs)


def mean_rate(rates: Sequence[float]) -> float:
    """The harmonic mean, which rates of equal amounts have: all of them over the time they take."""
    if not rates:
        raise ValueError("no rates to average")
    _positive(least_rate=min(rates))
    return len(rates) / sum(1 / r for r in rates)


def mean_ratio(ratios: Sequence[float]) -> float:
    """The geometric mean: a last resort, for when the costs behind ratios are lost.

    It belongs to no time that anybody waited for (Hoefler, Belli 2015, rule 4); say so beside it.
    No report of ours shows one.
    """
    if not ratios:
        raise ValueError("no ratios to average")
    _positive(least_ratio=min(ratios))
    return exp(sum(map(log, ratios)) / len(ratios))


def quantile(values: Sequence[float], q: float) -> float:
    """The value that a share q of the values does not exceed, 0 < q <= 1: number ceil(q n) of n."""
    if not values or not 0 < q <= 1:
        raise ValueError(f"no quantile {q} of {len(values)} values")
    return sorted(values)[ceil(q * len(values) - 1e-9) - 1]


def quantile_interval(
    values: Sequence[float], q: float, level: float = 0.95
) -> tuple[float, float] | None:
    """An interval that holds the quantile with at least this confidence; None with too few values.

    By order statistics (Le Boudec 2010, theorem 2.1): between the values number j and k lies the
    quantile with the chance that a binomial (n, q) variable is at least j and below k. Nothing is
    assumed of the distribution. For p99 some 300 values are needed.
    """
    if not 0 < q < 1 or not 0 < level < 1:
        raise ValueError(f"no interval of level {level} for quantile {q}")
    found = _ends(len(values), q, level)
    if found is None:
        return None
    ordered = sorted(values)
    return ordered[found[0]], ordered[found[1]]


@cache
def _ends(n: int, q: float, level: float) -> tuple[int, int] | None:
    """The ends of the narrowest interval about the quantile, counted from 0."""
    tail = (1 - level) / 2
    below = 0.0  # the chance that fewer than j values lie below the quantile
    low = high = None
    spread = 6 * sqrt(n * q * (1 - q)) + 2
    for j in range(max(0, floor(n * q - spread)), min(n, ceil(n * q + spread)) + 1):
        # Through logarithms, for powers vanish and factorials overflow.
        weight = lgamma(n + 1) - lgamma(j + 1) - lgamma(n - j + 1)
        below += exp(weight + j * log(q) + (n - j) * log(1 - q))
        if below <= tail:
            low = j  # value number j + 1 is surely enough below the quantile
        if high is None and below >= 1 - tail:
            high = j
    return None if low is None or high is None or high >= n else (low, high)
