"""Tests whether a measurement is stable, by the order and distribution of its iterations. Pure.

Each test has a threshold below which an effect does not matter, and if chance can cause the effect,
a significance level of 0.1 % (1 % for the warm-up). For independent iterations of one distribution
at most about one row in a hundred gets a false warning, which a test checks. None of the tests
assumes a normal distribution.

The dip is the distance of a sample from the nearest distribution with one mode: J. A. Hartigan,
P. M. Hartigan, "The Dip Test of Unimodality", Annals of Statistics 13 (1985). Times are skewed;
skewness alone does not increase the dip, unlike Sarle's coefficient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, exp, lgamma, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from busbar.units import format_seconds
from reports.statistics.inference import midranks, neighbours
from reports.statistics.quantities import relative_width

Floats = NDArray[np.float64]

#: sqrt(n) x dip of n uniform values, the worst case with one mode, is below this in at least 99.9 %
#: of samples for n from 20 to 1000; found by simulation, and a test repeats the simulation.
CRITICAL = 0.70
_FEWEST_FOR_DIP = 20
_MOST_FOR_DIP = 1000


def dip(values: Sequence[float]) -> float:
    """The least distance to a unimodal distribution (largest difference of distribution functions).

    Between 1 / 2n and 1/4. Below the mode a unimodal distribution function is convex, above it
    concave. The modal interval is shrunk until the misfit of the convex minorant on its left and of
    the concave majorant on its right exceeds the gap between the two. Equal values are not spread
    (but see `is_multimodal`). Raises ValueError without values.
    """
    x = np.sort(np.asarray(values, dtype=float))
    n = len(x)
    if not n:
        raise ValueError("no values to take the dip of")
    below, above = np.arange(n) / n, np.arange(1, n + 1) / n  # left and right of each jump
    low, high, worst = 0, n - 1, 1 / n
    while True:
        part = slice(low, high + 1)
        minorant, under = _hull(x[part], below[part], 1.0)
        majorant, over = _hull(x[part], above[part], -1.0)
        gap = majorant - minorant
        touched = np.union1d(under, over)
        at = int(touched[np.argmax(gap[touched])])
        if gap[at] <= worst:
            return worst / 2
        left = int(under[under <= at][-1])
        right = int(over[over >= at][0])
        worst = max(
            worst,
            float((above[part] - minorant)[: left + 1].max()),
            float((majorant - below[part])[right:].max()),
        )
        if (left, right) == (0, high - low):
            return worst / 2
        low, high = low + left, low + right


def _hull(x: Floats, y: Floats, sign: float) -> tuple[Floats, NDArray[np.int64]]:
    """Greatest convex minorant (sign 1) or least concave majorant (−1), and where it touches y."""
    corners: list[int] = []
    xs, ys = x.tolist(), (sign * y).tolist()
    for i in range(len(xs)):
        while len(corners) > 1:
            a, b = corners[-2], corners[-1]
            if (ys[b] - ys[a]) * (xs[i] - xs[b]) < (ys[i] - ys[b]) * (xs[b] - xs[a]):
                break
            corners.pop()
        corners.append(i)
    touched = np.array(corners)
    return np.interp(x, x[touched], y[touched]), touched


def is_multimodal(values: Sequence[float]) -> bool:
    """True if a single mode is rejected at the 0.1 % level; False for fewer than 20 values.

    Of more than 1000 values only every k-th is used. Values rounded to clock ticks would each look
    like a mode, so they are first spread evenly over the tick, with a fixed seed.
    """
    if len(values) < _FEWEST_FOR_DIP:
        return False
    chosen = np.asarray(values[:: -(-len(values) // _MOST_FOR_DIP)], dtype=float)
    distinct = np.unique(chosen)
    if len(distinct) < 2:
        return False
    if len(distinct) < len(chosen):
        tick = float(np.diff(distinct).min())
        chosen = chosen + tick * (np.random.default_rng(0).random(len(chosen)) - 0.5)
    return sqrt(len(chosen)) * dip(chosen.tolist()) > CRITICAL


def two_groups(values: Sequence[float]) -> tuple[float, float, float]:
    """Split values into two groups: (median of the lower, median of the upper, share of the upper).

    The split minimises the squares within both groups (Fisher 1958). Raises ValueError for fewer
    than two values.
    """
    if len(values) < 2:
        raise ValueError("two groups need two values")
    x = np.sort(np.asarray(values, dtype=float))
    n, sums = len(x), np.cumsum(x)
    lower = np.arange(1, n)
    between = (sums[:-1] / lower - (sums[-1] - sums[:-1]) / (n - lower)) ** 2 * lower * (n - lower)
    cut = int(np.argmax(between)) + 1
    return float(np.median(x[:cut])), float(np.median(x[cut:])), (n - cut) / n


Kind = Literal["few", "spread", "warm-up", "drift", "modes", "alike"]

FEWEST = 6  # iterations below which the median has no interval
ORDERED = 20  # iterations below which order and shape are not tested
MOST_CV = 0.1
_SIGNIFICANT = 0.001
_SIGNIFICANT_WARM = 0.01
_SHIFT = 0.02
_MANY_TIMES = 9
_APART = 0.05
_LIKENESS = 0.2


@dataclass(frozen=True)
class Unstable:
    """One reason why a row is unstable. ``amount``: relative, for sorting. Kinds: see `unstable`.

    ``shift``: relative error that the row's median may have for this reason; infinite if unknown, 0
    if the reason does not move the median (or there are no raw times).
    """

    kind: Kind
    text: str
    amount: float
    shift: float = 0.0


def unstable(times: Sequence[float]) -> tuple[Unstable, ...]:
    """The instabilities of a row's iterations, given in seconds and in the order of measurement.

    ``few``: fewer than 6. ``spread``: standard deviation above 10 % of the mean. ``warm-up``: the
    first iterations above the rest. ``drift``: times rise or fall over the row. ``modes``: more
    than one mode. ``alike``: successive iterations correlate. The last four need 20 iterations. An
    empty row gives no reasons.
    """
    t = np.asarray(times, dtype=float)
    if not len(t):
        return ()
    if len(t) < FEWEST:
        text = f"{len(t)} iteration{'s' * (len(t) > 1)}: no interval is known"
        return (Unstable("few", text, 1 / len(t), float("inf")),)
    reasons = [_spread(t)]
    if len(t) >= ORDERED and t.min() > 0:
        warm = _warm_up(t)
        # A warm-up is reported once, and the rest is tested without it.
        rest = t if warm is None else t[warm[0] :]
        ranks = midranks(rest)[0]
        reasons += [None if warm is None else warm[1], _drift(rest, ranks), _modes(rest)]
        reasons.append(_alike(rest, ranks))
    return tuple(one for one in reasons if one is not None)


def _spread(t: Floats) -> Unstable | None:
    mean = float(t.mean())
    cv = float(t.std()) / mean if mean > 0 else 0.0
    text = f"cv {100 * cv:.3g} %"
    return Unstable("spread", text, cv, relative_width(t)) if cv > MOST_CV else None


def _warm_up(t: Floats) -> tuple[int, Unstable] | None:
    """The number of first iterations that are longer than the rest, and the reason; or None.

    In random order, the first k are all among the j longest of n with probability C(j, k) /
    C(n, k), where j is the place of the shortest of them. For k = 1, 2, 4, … n/4 the least such
    value is tested with Bonferroni's correction. This cannot detect a single first iteration; that
    one counts if it is 1.5 times as long as all others and twice the median.
    """
    n = len(t)
    sizes = [1 << i for i in range(1, (n // 4).bit_length())]
    among = {k: int((t >= t[:k].min()).sum()) for k in sizes}
    chances = {k: exp(_log_comb(j, k) - _log_comb(n, k)) * len(sizes) for k, j in among.items()}
    k = min(chances, key=chances.__getitem__, default=0)
    if not k or chances[k] >= _SIGNIFICANT_WARM:
        if not (t[0] > 1.5 * t[1:].max() and t[0] > 2 * np.median(t[1:])):
            return None
        k = 1
    more = float(np.median(t[:k]) / np.median(t[k:])) - 1
    if more < _APART:
        return None
    first = "the first iteration takes" if k == 1 else f"the first {k} iterations take"
    text = f"{first} {_longer(more)} the rest"
    shift = float(np.median(t) / np.median(t[k:])) - 1
    return k, Unstable("warm-up", text, more, abs(shift))


def _longer(more: float) -> str:
    """``30 % longer than``, or for more than 900 % ``12 times as long as``."""
    if more > _MANY_TIMES:
        return f"{1 + more:.3g} times as long as"
    return f"{100 * more:.3g} % longer than"


def _log_comb(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def _significant(z: float) -> bool:
    return erfc(abs(z) / sqrt(2)) < _SIGNIFICANT


def _drift(t: Floats, ranks: Floats) -> Unstable | None:
    """Spearman's correlation (1904) of times and their order; amount: last third over first."""
    n = len(t)
    if ranks.min() == ranks.max():
        return None
    rho = float(np.corrcoef(ranks, np.arange(n))[0, 1])
    third = n // 3
    change = float(np.median(t[-third:]) / np.median(t[:third])) - 1
    if abs(change) < _SHIFT or change * rho < 0 or not _significant(rho * sqrt(n - 1)):
        return None
    word = "slower" if change > 0 else "faster"
    text = f"the last third is {100 * abs(change):.3g} % {word} than the first"
    if change > _MANY_TIMES:
        text = f"the last third takes {_longer(change)} the first"
    return Unstable("drift", text, abs(change), abs(change))


def _modes(t: Floats) -> Unstable | None:
    """The dip test (`is_multimodal`), if the two groups are at least 5 % apart.

    The longest twentieth is left out of the groups; otherwise a few outliers would be a group.
    """
    usual = np.sort(t)[: len(t) - len(t) // 20]
    low, high, share = two_groups(usual.tolist())
    apart = high / low - 1
    if apart < _APART or not is_multimodal(t.tolist()):
        return None
    text = (
        f"two modes: {100 * (1 - share):.0f} % near {format_seconds(low)}, the rest near"
        f" {format_seconds(high)}"
    )
    # A small group does not move the median; two groups of similar size may, from run to run.
    return Unstable("modes", text, apart, apart if 0.25 <= share <= 0.75 else 0.0)


def _alike(t: Floats, ranks: Floats) -> Unstable | None:
    """Test the rank correlation of successive iterations (Wald, Wolfowitz 1943).

    For n independent values it is about −1/n with variance 1/n. With a correlation r the mean of n
    values is as uncertain as that of n (1 − r) / (1 + r) independent ones.
    """
    n, r = len(t), neighbours(ranks)
    if r is None or abs(r) < _LIKENESS or not _significant((r + 1 / n) * sqrt(n)):
        return None
    if r < 0:
        text = f"long and short iterations take turns (correlation of neighbours {r:.2f})"
        return Unstable("alike", text, -r)
    text = f"successive iterations correlate ({r:.2f})"
    return Unstable("alike", text, r, relative_width(t))
