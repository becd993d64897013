"""Change points of several series over the same runs, tested together. Pure; no I/O.

Binary segmentation (Vostrikova 1981): the standardised Wilcoxon rank sum is computed for every cut
of a segment, and a permutation test of the greatest decides whether there is a change. It is placed
at the cut with the least sum of absolute deviations from the medians of both sides, since ranks do
not show how far values are apart. Both sides are segmented again. Under the null hypothesis any
order of the runs is equally likely, so their order is permuted, *in the same way for all series*.
Each series' p is compared with the least p of all series in a permutation (Westfall, Young 1993,
step minP). So in a history without changes one is reported in about 5 % of the cases, whatever the
number of rows and their dependence. A change that all rows share is found as early as in a single
row. Ranks are robust to outliers and assume no distribution. But runs that drift are not
exchangeable, and appear as steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from busbar.statistics import student_p
from reports.statistics.inference import holm, midranks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SIGNIFICANT = 0.05
LEAST = 2  # fewest runs on each side of a cut: a single one may be an outlier
_DRAWS = 1999
_FEWEST_DRAWS = 199
_CELLS = 20_000_000
_FEWEST_BEFORE, _LAST = 5, 5
_SIGNIFICANT_ALARM = 0.01
#: Fewest runs in which a change can show: five, and one that is unusual.
FEWEST_RUNS = _FEWEST_BEFORE + 1


@dataclass(frozen=True)
class ChangePoint:
    """A change: ``at`` is the first place in the series after it; ``p`` is for all series together.

    ``ratio``: median from ``at`` to the next cut over the median from the cut before to ``at``.
    """

    at: int
    p: float
    ratio: float


@dataclass(frozen=True)
class _Segment:
    """Part of a series: the number of the series, its first place, run numbers and values."""

    series: int
    start: int
    runs: Ints
    values: Floats


def cuts(
    series: Sequence[Sequence[tuple[int, float]]], noise: float = 0.01
) -> list[list[ChangePoint]]:
    """The change points of each series, in order.

    A series is (number of the run, positive value) in the order of the runs; runs may be missing.
    ``noise``: smaller relative changes are ignored. Each side of a cut has at least two values. The
    result is deterministic.
    """
    open_ = [
        _Segment(n, 0, np.array([run for run, _ in s]), np.array([v for _, v in s]))
        for n, s in enumerate(series)
    ]
    changes: list[list[tuple[int, float]]] = [[] for _ in series]
    while open_:
        open_ = [s for s in open_ if len(s.values) >= 2 * LEAST]
        following = []
        for segment, p in zip(open_, _tested(open_), strict=True):
            if p >= _SIGNIFICANT:
                continue
            at = _place(segment.values)
            before, after = segment.values[:at], segment.values[at:]
            ratio = float(np.median(after) / np.median(before))
            if abs(log(ratio)) > log(1 + noise):
                changes[segment.series].append((segment.start + at, p))
                runs, first = segment.runs, segment.start + at
                following += [
                    replace(segment, runs=runs[:at], values=before),
                    replace(segment, runs=runs[at:], values=after, start=first),
                ]
        open_ = following
    return [_with_ratios(s, sorted(f)) for s, f in zip(series, changes, strict=True)]


def _with_ratios(
    series: Sequence[tuple[int, float]], changes: list[tuple[int, float]]
) -> list[ChangePoint]:
    values = [v for _, v in series]
    ends = [0, *(at for at, _ in changes), len(values)]
    medians = [float(np.median(values[a:b])) for a, b in pairwise(ends) if b > a]
    return [
        ChangePoint(at, p, medians[n + 1] / medians[n] if medians[n] else float("inf"))
        for n, (at, p) in enumerate(changes)
    ]


def _place(values: Floats) -> int:
    """The cut with the least sum of absolute deviations of the logarithms from either's median."""
    logs = np.log(values)
    loss = [
        sum(float(abs(part - np.median(part)).sum()) for part in (logs[:at], logs[at:]))
        for at in range(LEAST, len(logs) - LEAST + 1)
    ]
    return LEAST + int(np.argmin(loss))


def _tested(segments: Sequence[_Segment]) -> list[float]:
    """The p of the best cut of each segment, corrected for all segments."""
    if not segments:
        return []
    longest = max(len(s.values) for s in segments)
    draws = max(_FEWEST_DRAWS, min(_DRAWS, _CELLS // (longest * len(segments))))
    runs = 1 + max(int(s.runs.max()) for s in segments)
    # Each draw is one order of all runs; a segment uses the order of its own runs.
    keys = np.random.default_rng(0).random((draws, runs))
    own, least = [], np.ones(draws)
    for segment in segments:
        ranks = midranks(segment.values)[0]
        order = np.concatenate([np.arange(len(ranks))[None], keys[:, segment.runs].argsort(axis=1)])
        scores = _scores(ranks[order])
        best = scores.max(axis=1)
        # P of each order: the share of orders (and the observed one) with at least this score.
        p = 1 - np.searchsorted(np.sort(best), best - 1e-9) / (draws + 1)
        own.append(float(p[0]))
        least = np.minimum(least, p[1:])
    return [float(1 + (least <= p + 1e-12).sum()) / (draws + 1) for p in own]


def _scores(ranks: Floats) -> Floats:
    """Standardised rank sums before each cut; rows: orders, columns: cuts from `LEAST` on."""
    n = ranks.shape[1]
    k = np.arange(LEAST, n - LEAST + 1)
    variance = float(ranks[0].var()) * k * (n - k) / (n - 1)
    sums = ranks.cumsum(axis=1)[:, k - 1]
    off = abs(sums - k * ranks[0].mean())
    return np.asarray(off / np.sqrt(variance) if variance[0] > 0 else np.zeros_like(off))


@dataclass(frozen=True)
class Alarm:
    """The last ``runs`` values of a series are unusual compared with those before.

    ``ratio``: their median over the median of the values before.
    """

    series: int
    runs: int
    ratio: float
    p: float


def alarms(
    series: Sequence[Sequence[tuple[int, float]]],
    known: Sequence[Sequence[ChangePoint]],
    noise: float = 0.01,
) -> list[Alarm]:
    """Series whose last values, one to five, are unusual compared with those since the last cut.

    A permutation test needs several runs on both sides of a cut. Until there are enough, this test
    gives a warning. It assumes that logarithms before are normal, compares the last ones by
    Student's t, and corrects for their number and the number of series (Holm). As tails are heavy,
    each must also deviate by a quarter more than any value before. It needs five runs before.
    """
    best: list[tuple[int, int, float, float]] = []
    for n, (s, changes) in enumerate(zip(series, known, strict=True)):
        level = np.log([v for _, v in s[changes[-1].at if changes else 0 :]])
        outliers = [
            _out(level, runs) for runs in range(1, min(_LAST, len(level) - _FEWEST_BEFORE) + 1)
        ]
        if outliers:
            off, p = min(outliers, key=lambda one: one[1])
            best.append((n, 1 + outliers.index((off, p)), off, p * len(outliers)))
    corrected = holm([p for *_, p in best])
    return [
        Alarm(n, runs, float(np.exp(off)), p)
        for (n, runs, off, _), p in zip(best, corrected, strict=True)
        if p < _SIGNIFICANT_ALARM and abs(off) > log(1 + noise)
    ]


def _out(level: Floats, runs: int) -> tuple[float, float]:
    """(distance of the last runs from those before, two-sided p); p is 1 if they are not far."""
    before, last = level[:-runs], level[-runs:]
    middle = float(np.median(before))
    off = float(np.median(last)) - middle
    nearest = float((np.sign(off) * (last - middle)).min())
    if nearest <= 1.25 * float(abs(before - middle).max()):
        return off, 1.0
    error = max(float(before.std(ddof=1)), 1e-12) * sqrt(1 / runs + 1 / len(before))
    return off, 2 * student_p(abs(off) / error, len(before) - 1)
