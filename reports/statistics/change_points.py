"""Change points of several series over the same runs, tested together. Pure; no I/O.

Binary segmentation (Vostrikova 1981): for every cut of a segment the standardised Wilcoxon rank sum
is computed, the greatest gives the cut, and both sides are segmented again. A permutation test
decides whether it is a change. Under the null hypothesis the runs could have come in any order, so
their order is permuted, *in the same way for all series*. Each series is compared with the least p
value of all series in a permutation (Westfall, Young 1993, step minP). So a history without a
change gets one in about 5 % of the cases, whatever the number of rows and their dependence, and a
change that all rows share is found as early as in a single row. Ranks make outliers harmless and
need no distribution. Runs that drift are not exchangeable, though, and appear as steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from reports.statistics.inference import holm, midranks, student_p

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SIGNIFICANT = 0.05
LEAST = 2  # runs on each side of a cut: one alone is an outlier until it is confirmed
_DRAWS = 1999
_FEWEST_DRAWS = 199
_CELLS = 20_000_000
_FEWEST_BEFORE, _LAST = 5, 5
_SIGNIFICANT_ALARM = 0.01


@dataclass(frozen=True)
class ChangePoint:
    """A change: ``at`` is the first place in the series after it; ``p`` is for all series.

    ``ratio``: the median from there to the next cut over the median since the cut before.
    """

    at: int
    p: float
    ratio: float


@dataclass(frozen=True)
class _Segment:
    """Part of a series: which series, from which place, the runs of its values, their ranks."""

    series: int
    start: int
    runs: Ints
    values: Floats


def cuts(
    series: Sequence[Sequence[tuple[int, float]]], noise: float = 0.01
) -> list[list[ChangePoint]]:
    """The changes of each series, in order.

    A series is (number of the run, positive value) in the order of the runs; it may lack runs.
    ``noise``: a lesser relative change is none. At least two values stand on each side of a cut.
    The same series have the same cuts.
    """
    open_ = [
        _Segment(n, 0, np.array([run for run, _ in s]), np.array([v for _, v in s]))
        for n, s in enumerate(series)
    ]
    changes: list[list[tuple[int, float]]] = [[] for _ in series]
    while open_:
        open_ = [s for s in open_ if len(s.values) >= 2 * LEAST]
        following = []
        for segment, (at, p) in zip(open_, _tested(open_), strict=True):
            before, after = segment.values[:at], segment.values[at:]
            ratio = float(np.median(after) / np.median(before))
            if p < _SIGNIFICANT and abs(log(ratio)) > log(1 + noise):
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


def _tested(segments: Sequence[_Segment]) -> list[tuple[int, float]]:
    """For each segment its best cut, and p corrected for all segments."""
    if not segments:
        return []
    longest = max(len(s.values) for s in segments)
    draws = max(_FEWEST_DRAWS, min(_DRAWS, _CELLS // (longest * len(segments))))
    runs = 1 + max(int(s.runs.max()) for s in segments)
    # One order of all runs a draw; a segment takes the order of those that it has.
    keys = np.random.default_rng(0).random((draws, runs))
    places, own, least = [], [], np.ones(draws)
    for segment in segments:
        ranks = midranks(segment.values)[0]
        order = np.concatenate([np.arange(len(ranks))[None], keys[:, segment.runs].argsort(axis=1)])
        scores = _scores(ranks[order])
        best = scores.max(axis=1)
        places.append(int(scores[0].argmax()) + LEAST)
        # Of every order, the observed one among them, the share that scores as much.
        p = 1 - np.searchsorted(np.sort(best), best - 1e-9) / (draws + 1)
        own.append(float(p[0]))
        least = np.minimum(least, p[1:])
    return [
        (at, float(1 + (least <= p + 1e-12).sum()) / (draws + 1))
        for at, p in zip(places, own, strict=True)
    ]


def _scores(ranks: Floats) -> Floats:
    """The rank sum before each cut, standardised; rows are orders, columns cuts from LEAST on."""
    n = ranks.shape[1]
    k = np.arange(LEAST, n - LEAST + 1)
    variance = float(ranks[0].var()) * k * (n - k) / (n - 1)
    sums = ranks.cumsum(axis=1)[:, k - 1]
    off = abs(sums - k * ranks[0].mean())
    return np.asarray(off / np.sqrt(variance) if variance[0] > 0 else np.zeros_like(off))


@dataclass(frozen=True)
class Alarm:
    """Last values that the ones before do not explain: ``ratio`` of their medians.

    ``runs``: how many of the last values it concerns.
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
    """Series whose last values, one to five, are out of the ordinary since the last cut.

    A permutation needs several runs on both sides of a cut; until they have come this is what can
    be said. Unlike there a distribution is assumed: the logarithms before are held to be normal,
    and the last ones against them by Student's t, corrected for their number and that of the series
    (Holm); and each must be out by a quarter more than anything before, for tails are heavy. At
    least five runs must have come before.
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
    """The distance of the last runs from the ones before; two-sided p, 1 when not far off."""
    before, last = level[:-runs], level[-runs:]
    middle = float(np.median(before))
    off = float(np.median(last)) - middle
    nearest = float((np.sign(off) * (last - middle)).min())
    if nearest <= 1.25 * float(abs(before - middle).max()):
        return off, 1.0
    error = max(float(before.std(ddof=1)), 1e-12) * sqrt(1 / runs + 1 / len(before))
    return off, 2 * student_p(abs(off) / error, len(before) - 1)
