"""The quantities of the field, one function each; docs/measuring.md derives them. Pure; no I/O.

Seconds, bytes, bytes per second, joules. Every function raises ValueError where its formula has no
meaning: nothing measured, or a figure that must be positive and is not.
"""

from __future__ import annotations

from math import inf

#: Bytes below which busbw says nothing: a call takes its latency, whatever it moves.
LATENCY_BOUND = 64 * 1024


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
    """Throughput on n over n x throughput on 1 (``base``); 1 is a perfect speed-up.

    Of weak scaling, the same work on every rank, it is t(1) / t(n).
    """
    _positive(base=base, throughput=throughput, n=n)
    return throughput / (n * base)


def joules_per_gb(joules: float, nbytes: float) -> float:
    """Energy of an operation over its size in GB (10^9 bytes)."""
    _positive(nbytes=nbytes)
    return joules / (nbytes / 1e9)
