"""Comparison of two samples: ratio with an interval, test, correction, effect size.

Pure functions on seconds. Iterations within a run are assumed to be at most as dependent as a
first-order autoregression. The iterations of a launch do not show differences between launches, so
launches are the units (`launch_test`, `between_runs`), and ``reports.analysis.compare`` gives no
verdict for one launch per side. If every launch measured both sides, launches are blocks, and the
difference within each launch is tested (``within``). "Run" means one launch here.

The chi-squared distribution is here, and Student's in `busbar.statistics`, because scipy takes a
second to load.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil, comb, erfc, exp, floor, log, nan, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.statistics import TAIL, student_p, student_quantile


def chi_squared_p(x: float, k: int) -> float:
    """The probability that a chi-squared value with k degrees of freedom is above x.

    Wilson and Hilferty's approximation (1931): the cube root of x / k is nearly normal.
    """
    if x <= 0:
        return 1.0
    share = 2 / (9 * k)
    return erfc(((x / k) ** (1 / 3) - 1 + share) / sqrt(share) / sqrt(2)) / 2


Samples = Sequence[Sequence[float]]
_DRAWS = 2000
_LIKE = 0.1  # a lower correlation may be chance: single iterations are drawn, not blocks
_MOST = 4_000_000  # most drawn values at once, to bound memory
_MOST_LAUNCHES = 1000  # per side that are tried in `launches_to_see`
_LONGEST = 1000  # most iterations of a run to draw from, to bound time


def ratio_interval(base: Samples, new: Samples) -> tuple[float, float] | None:
    """The 95 % interval of median(new) / median(base), by a percentile bootstrap (Efron 1979).

    A side has one sample per run. Runs are drawn first and iterations within them (Davison, Hinkley
    1997, 3.8), so that differences between runs widen the interval. If successive iterations
    correlate, whole blocks are drawn (`_block`). A bootstrap over few runs underestimates their
    scatter, so the interval also covers that of `between_runs`. None for fewer than six values on a
    side or a median of zero. The result is deterministic.
    """
    if min(sum(map(len, base)), sum(map(len, new))) < 6:
        return None
    random = np.random.default_rng(0)
    sides = [[s for s in side if len(s)] for side in (base, new)]
    medians = [drawn_medians(side, random) for side in sides]
    if not medians[0].all():
        return None
    low, high = np.quantile(medians[1] / medians[0], [TAIL, 1 - TAIL])
    wider = between_runs(sides[0], sides[1]) or (low, high)
    return float(min(low, wider[0])), float(max(high, wider[1]))


class _Between(NamedTuple):
    """The logarithm of the ratio of two sides, its standard error, and degrees of freedom."""

    middle: float
    error: float
    freedom: int


def _between(base: Samples, new: Samples, within: Sequence[float] = ()) -> _Between | None:
    """Compare the logarithms of the runs' medians, or use those in ``within``; see `between_runs`.

    None if there are too few runs, or if a median is not positive.
    """
    if within:
        blocks = np.array(within)
        error = float(blocks.std(ddof=1)) / sqrt(len(blocks))
        return _Between(float(blocks.mean()), error, len(blocks) - 1)
    medians = [np.array([np.median(run) for run in side]) for side in (base, new)]
    sizes = [len(one) for one in medians]
    if sum(sizes) < 3 or min(m.min() for m in medians) <= 0:
        return None
    logs = [np.log(m) for m in medians]
    middle = float(logs[1].mean() - logs[0].mean())
    if min(sizes) == 1:  # the scatter of a single launch is unknown; assume that of the others
        scatter = float(max(logs, key=len).std(ddof=1))
        return _Between(middle, scatter * sqrt(sum(1 / n for n in sizes)), max(sizes) - 1)
    return _Between(middle, *_welch([float(one.var(ddof=1)) / len(one) for one in logs], sizes))


def _welch(squares: Sequence[float], sizes: Sequence[int]) -> tuple[float, int]:
    """Standard error and degrees of freedom of a difference of two means with unequal variances.

    Welch (1947), with Satterthwaite's degrees of freedom rounded down; one less if one side has
    more launches, because the approximation is slightly too optimistic for few launches.
    ``squares``: the squared standard errors of the means.
    """
    total, least = sum(squares), min(sizes) - 1
    if not total:
        return 0.0, least
    parts = sum((one / total) ** 2 / (n - 1) for one, n in zip(squares, sizes, strict=True))
    return sqrt(total), max(least, floor(1 / parts + 1e-9) - (sizes[0] != sizes[1]))


def between_runs(
    base: Samples, new: Samples, within: Sequence[float] = ()
) -> tuple[float, float] | None:
    """The 95 % interval of new / base by Student's t on the logarithms of the runs' medians.

    The sides may have unequal variances (`_welch`). A single run is assumed to scatter as the runs
    of the other side. None if no side has several runs, or a median is not positive. ``within``: if
    every run measured both sides, the logarithm of the ratio in each (`within_run`). Then t is that
    of a randomised complete block design, since differences between runs affect both sides equally.
    """
    difference = _between(base, new, within)
    return None if difference is None else _interval(*difference)


def _interval(middle: float, error: float, freedom: int) -> tuple[float, float]:
    off = student_quantile(TAIL, freedom) * error
    return exp(middle - off), exp(middle + off)


def within_run(base: Samples, new: Samples) -> float:
    """The logarithm of new / base in one launch that measured both, each once or several times.

    A side has one list of times for each turn of measuring. If both sides have as many, each turn
    is compared with the other side's turn of the same number, which ran next to it, and the result
    is the median over turns. Otherwise the medians of all iterations are compared. NaN if a median
    is not positive.
    """
    alike = len(base) == len(new)
    sides = (s if alike else [[t for visit in s for t in visit]] for s in (base, new))
    left, right = ([float(np.median(visit)) for visit in side] for side in sides)
    if min(*left, *right) <= 0:
        return nan
    return float(np.median([log(b / a) for a, b in zip(left, right, strict=True)]))


def launch_test(base: Samples, new: Samples, within: Sequence[float] = ()) -> float | None:
    """The two-sided p of the test of `between_runs`: launches are the units, medians the values.

    None if `between_runs` gives no interval.
    """
    difference = _between(base, new, within)
    if difference is None:
        return None
    if not difference.error:
        return float(not difference.middle)
    return 2 * student_p(abs(difference.middle) / difference.error, difference.freedom)


def least_p(base: int, new: int, within: int = 0) -> float:
    """The least two-sided p that any test can give that assumes no distribution.

    ``base``, ``new``: launches of each side. If they are alike, any of the C(base + new, new) ways
    to divide them is as probable, so complete separation has twice the probability of one of them.
    ``within``: launches that measured both sides; then each has either sign as often.
    """
    return 2.0 ** (1 - within) if within else 2 / comb(base + new, new)


def separated(base: Samples, new: Samples, within: Sequence[float] = ()) -> bool:
    """True if every launch of one side took longer than every launch of the other, by medians.

    With ``within``, if every launch has the same sign.
    """
    if within:
        return min(within) > 0 or max(within) < 0
    sides = [[float(np.median(run)) for run in side if len(run)] for side in (base, new)]
    return max(sides[0]) < min(sides[1]) or max(sides[1]) < min(sides[0])


def launch_scatter(base: Samples, new: Samples) -> float | None:
    """The scatter among launches: the standard deviation of the logarithms of their medians.

    Pooled over both sides as in `between_runs`; None if `between_runs` gives no interval.
    """
    difference = _between(base, new)
    if difference is None:
        return None
    return difference.error / sqrt(sum(1 / len(side) for side in (base, new)))


def least_seen(scatter: float, launches: int, *, within: bool = False) -> float:
    """The least slowdown that a comparison with ``launches`` per side detects with 95 % power.

    Student's t of the level plus that of the power, times the standard error of the difference
    (Cohen 1988, 2.4). ``scatter``: standard deviation of the logarithms of a side's launches; with
    ``within``, of the differences within launches. Raises ValueError below two launches.
    """
    if launches < 2:
        raise ValueError(f"{launches} launches a side")
    sides = 1 if within else 2
    freedom = sides * (launches - 1)
    # With equal variances, Welch's test has about two degrees less than both sides have together
    # (by simulation: the result is within 2 % of the true one from three launches per side on).
    level = freedom if within else max(1, freedom - 2)
    t = student_quantile(0.025, level) + student_quantile(0.05, freedom)
    return exp(t * scatter * sqrt(sides / launches)) - 1


def launches_to_see(scatter: float, share: float) -> int | None:
    """The number of launches per side that detects a slowdown by ``share`` in 95 % of the cases.

    None if it is more than 1000.
    """
    few = range(_MOST_LAUNCHES + 1)
    enough = bisect_left(few, True, 2, key=lambda n: least_seen(scatter, n) <= share)
    return enough if enough in few else None


def launch_interval(runs: Samples) -> tuple[float, float] | None:
    """The 95 % interval of `launch_center` by Student's t on the logarithms of the medians.

    None for one launch, or if a median is not positive.
    """
    medians = np.array([np.median(run) for run in runs])
    if len(medians) < 2 or medians.min() <= 0:
        return None
    logs = np.log(medians)
    error = float(logs.std(ddof=1)) / sqrt(len(logs))
    return _interval(float(logs.mean()), error, len(logs) - 1)


def launch_center(runs: Samples) -> float:
    """The time over several launches: the geometric mean of their medians; for one, its median.

    `between_runs` compares these. Raises ValueError without a value.
    """
    medians = [float(np.median(run)) for run in runs if len(run)]
    if not medians:
        raise ValueError("no values to take the middle of")
    if len(medians) == 1 or min(medians) <= 0:
        return float(np.median(medians))
    return exp(float(np.mean(np.log(medians))))


def neighbours(values: NDArray[np.float64]) -> float | None:
    """The correlation of successive values; None if all are equal."""
    d = values - values.mean()
    squares = float(d @ d)
    return float(d[:-1] @ d[1:]) / squares if squares > 0 else None


def likeness(runs: Samples | Sequence[NDArray[np.float64]]) -> float:
    """The rank correlation r of successive iterations within runs, 0 … 0.98; negative becomes 0.

    Corrected for its bias in short samples, −(1 + 3r)/n (Kendall 1954).
    """
    total, many = 0.0, 0
    for run in runs:
        n, r = len(run), neighbours(midranks(np.asarray(run, dtype=float))[0])
        if n > 2 and r is not None:
            total += n * (r + (1 + 3 * r) / n)
            many += n
    return min(0.98, max(0.0, total / many)) if many else 0.0


def _block(n: int, r: float) -> int:
    """The block length for n iterations with correlation r, by Politis and White (2004)."""
    best = (6 * r**2 / (1 - r**2) ** 2 * n) ** (1 / 3)
    return max(1, min(ceil(best), n // 2)) if r > _LIKE else 1


def drawn_medians(runs: Samples, random: np.random.Generator) -> NDArray[np.float64]:
    """Medians of 2000 bootstrap samples: runs are drawn first, then (blocks of) their iterations.

    Of a run with more than 1000 iterations only every second, third, … is used. Tens of thousands
    would take minutes, and the scatter between runs is larger than the error that this adds.
    """
    thinned = [np.asarray(r, dtype=float)[:: len(r) // _LONGEST + 1] for r in runs]
    values = np.concatenate(thinned)
    lengths = np.array([len(r) for r in thinned])
    starts = np.cumsum(lengths) - lengths
    each = int(lengths.max())
    step = max(1, _MOST // (len(thinned) * each))
    block = _block(each, likeness(thinned))
    along = np.arange(block)
    medians = []
    for start in range(0, _DRAWS, step):
        chosen = random.integers(len(thinned), size=(min(step, _DRAWS - start), len(thinned), 1))
        within = random.random((*chosen.shape[:2], -(-each // block))) * lengths[chosen]
        if block > 1:  # blocks wrap around from the last iteration of a run to its first
            whole = (within.astype(int)[..., None] + along).reshape(*chosen.shape[:2], -1)
            within = whole[..., :each] % lengths[chosen]
        drawn = values[starts[chosen] + within.astype(int)]
        medians.append(np.median(drawn, axis=(1, 2)))
    return np.concatenate(medians)


def midranks(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Ranks from 1, with the mean rank for equal values; and the count of each distinct value."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place]), counts


def cliffs_delta(base: Sequence[float], new: Sequence[float]) -> float:
    """Cliff's delta (1993), −1 … 1: share of pairs with new larger minus share with new smaller.

    An effect size that assumes no distribution; 0 for an empty side.
    """
    n, m = len(base), len(new)
    if not n or not m:
        return 0.0
    values = np.concatenate([np.asarray(base, dtype=float), np.asarray(new, dtype=float)])
    u = float(midranks(values)[0][n:].sum()) - m * (m + 1) / 2
    return 2 * u / (n * m) - 1


def holm(p_values: Sequence[float]) -> list[float]:
    """P values corrected for their number, to bound the probability of any false alarm.

    Holm 1979: the k-th smallest of n is multiplied by n − k + 1, and made non-decreasing.
    """
    p = np.array(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    scaled = np.minimum(1.0, p[order] * np.arange(len(p), 0, -1))
    p[order] = np.maximum.accumulate(scaled)
    return [float(one) for one in p]
