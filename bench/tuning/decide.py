"""Choices from times. An algorithm is preferred only if it is faster beyond noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bench.run.tuning_file import Range, Tunable
from reports.statistics.inference import between_runs, ratio_interval

Times = Mapping[Tunable, Sequence[Sequence[float]]]
"""Seconds of iterations, one list per round."""
_DOZEN = 12


def _middle(rounds: Sequence[Sequence[float]]) -> float:
    return float(np.median(np.concatenate([np.asarray(r, dtype=float) for r in rounds])))


def slower(base: Sequence[Sequence[float]], other: Sequence[Sequence[float]], noise: float) -> bool:
    """True if ``other`` is certainly slower than ``base`` by more than ``noise``.

    Certainly means that the 95 % interval of the ratio of medians is above 1 + noise. It is a
    bootstrap over rounds and over iterations within them; a single round tells nothing about the
    differences between rounds. Single values (predictions) are compared directly.
    """
    if sum(map(len, base)) == sum(map(len, other)) == 1:
        return _middle(other) > (1 + noise) * _middle(base)
    if _clear(base, other, noise):  # no resampling could change the order of the medians
        wider = between_runs(base, other)
        return wider is None or wider[0] > 1 + noise
    interval = ratio_interval(base, other)
    return interval is not None and interval[0] > 1 + noise


def _clear(base: Sequence[Sequence[float]], other: Sequence[Sequence[float]], noise: float) -> bool:
    """True if 95 % of each round of ``other`` exceed 95 % of each round of ``base`` by ``noise``.

    The median of a resample is on the wrong side only if half of the resample is from a twentieth
    of the values: for rounds of a dozen values that is rarer than one resample in 2000.
    """
    sides = [[r for r in side if len(r)] for side in (base, other)]
    if min((len(r) for side in sides for r in side), default=0) < _DOZEN:
        return False
    most = max(float(np.quantile(r, 0.95)) for r in sides[0])
    return min(float(np.quantile(r, 0.05)) for r in sides[1]) > (1 + noise) * most


def tied(times: Times, noise: float) -> tuple[Tunable, ...]:
    """The candidates that may be the fastest.

    First the one with the least median, then all that are not certainly slower than it.
    """
    order = sorted(times, key=lambda c: (_middle(times[c]), c))
    best = order[0]
    return (best, *(c for c in order[1:] if not slower(times[best], times[c], noise)))


def verdict(times: Times, default: Tunable, before: Tunable | None, noise: float) -> Tunable:
    """The choice at one size.

    The default, unless another algorithm is certainly faster. Then the choice at the size before,
    if it may be the fastest, so that choices change rarely; otherwise the fastest.
    """
    may = tied(times, noise)
    if default in may:
        return default
    if before in may and before is not None:
        return before
    return may[0]


def decide(sizes: Mapping[int, Times], default: Tunable, noise: float) -> tuple[Range, ...]:
    """The ranges of sizes with one choice each; adjacent equal choices are one range.

    ``sizes`` must not be empty and every size must have a candidate.
    """
    ranges: list[Range] = []
    before: Tunable | None = None
    for size in sorted(sizes):
        times = sizes[size]
        choice = verdict(times, default, before, noise)
        if choice != before:
            base = _middle(times[default]) if default in times else None
            ranges.append(Range(size, choice, _middle(times[choice]), base))
        before = choice
    return tuple(ranges)
