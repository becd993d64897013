"""Fits: lines and curves of few ranges through times, by least *relative* error. No I/O.

The relative error of a time t and its prediction f is f/t − 1, so that 8 bytes weigh as much as 8
GB.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from collectives.model.costs import Curve, Interval

Numbers = NDArray[np.float64]
MOST_EDGES = 4
# A range has at least so many sizes, or its two parameters would pass through any.
_FEWEST = 3
_RESAMPLES = 200
_SEED = 20070


def alpha_beta(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float] | None:
    """Fit time = alpha + beta x size, in seconds and seconds per byte, neither negative.

    None for fewer than two sizes, or times that are not positive.
    """
    if len(set(sizes)) < 2 or min(times) <= 0:
        return None
    found = _lines(_sums(np.asarray(sizes, float), np.asarray(times, float)).sum(axis=1))
    return float(found[0]), float(found[1])


def _sums(m: Numbers, t: Numbers) -> Numbers:
    """The terms of the normal equations of relative errors: shape (6, points)."""
    return np.stack([1 / t**2, m / t**2, m**2 / t**2, 1 / t, m / t, np.ones_like(t)])


def _lines(s: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """(alpha, beta, sum of squared errors) of the best lines, by sums of shape (6, …).

    With two parameters the best pair that is not negative is the free one, or lies on an axis.
    """
    aa, ab, bb, ya, yb, n = s
    with np.errstate(all="ignore"):
        # Of one size alone, alpha takes it all; scaled so that bytes and seconds do not drown
        # 1e-12.
        det = aa * bb - ab**2
        regular = det > 1e-12 * aa * bb
        alpha = np.where(regular, (ya * bb - yb * ab) / det, -1.0)
        beta = np.where(regular, (yb * aa - ya * ab) / det, -1.0)
        free = (alpha >= 0) & (beta >= 0)
        only = np.stack([ya / aa, yb / bb])
    gain = np.nan_to_num(np.stack([ya * only[0], yb * only[1]]))
    flat = gain[0] >= gain[1]
    alpha = np.where(free, alpha, np.where(flat, only[0], 0.0))
    beta = np.where(free, beta, np.where(flat, 0.0, only[1]))
    error = n - 2 * (alpha * ya + beta * yb) + alpha**2 * aa + 2 * alpha * beta * ab + beta**2 * bb
    return alpha, beta, np.maximum(error, 0.0)


def _split(sums: Numbers, most: int) -> tuple[list[list[int]], list[float]]:
    """The best way to cut sizes into 1, 2, … ranges, and its squared error, by dynamic programming.

    ``sums``: those of each size, shape (6, sizes). A way is the list of its cuts.
    """
    n = sums.shape[1]
    edge = np.concatenate([np.zeros((6, 1)), np.cumsum(sums, axis=1)], axis=1)
    i, j = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    fits = j - i >= min(_FEWEST, n)
    error = np.full((n + 1, n + 1), np.inf)
    error[fits] = _lines(edge[:, j[fits]] - edge[:, i[fits]])[2]
    ways: list[list[list[int]]] = [[[] for _ in range(n + 1)]]
    costs = [error[0]]
    for _ in range(most):
        total = costs[-1][:, None] + error
        back = total.argmin(axis=0)
        costs.append(total.min(axis=0))
        ways.append([[*ways[-1][b], int(b)] for b in back])
    return [way[n] for way in ways], [float(cost[n]) for cost in costs]


def fit(sizes: ArrayLike, times: ArrayLike, *, most: int = MOST_EDGES) -> Curve:
    """The curve of least relative error through the medians of blocks of times.

    ``sizes``: bytes, shape (n,), rising; ``times``: seconds, shape (blocks, n), NaN where a block
    has none. Each number of ranges is cut in the best places; of the numbers the one with the least
    Schwarz (1978) criterion is taken, n·ln(error/n) + parameters·ln n, of three parameters a range.
    Intervals are the 2.5 and 97.5 percentiles over whole blocks drawn with replacement, cuts kept;
    the draws are seeded. Raises ValueError without a positive time at two sizes.
    """
    m, t = np.asarray(sizes, float), np.asarray(times, float)
    t = np.where(np.isfinite(t) & (t > 0), t, np.nan)
    kept = ~np.isnan(t).all(axis=0)
    if kept.sum() < 2:
        raise ValueError("times at two sizes at least are needed")
    m, t = m[kept], t[:, kept]
    n = len(m)
    whole = _sums(m, np.nanmedian(t, axis=0))
    ways, errors = _split(whole, min(most, max(0, n // _FEWEST - 1)))
    scores = [
        n * np.log(max(error, 1e-12) / n) + 3 * (k + 1) * np.log(n)
        for k, error in enumerate(errors)
    ]
    cuts = ways[int(np.argmin(scores))]
    alpha, beta = _ranges(whole, cuts)
    # Halfway between two sizes, as their ratio goes: the change is somewhere between them.
    edges = tuple(float(np.sqrt(m[c - 1] * m[c])) for c in cuts)
    curve = Curve(tuple(alpha.tolist()), tuple(beta.tolist()), edges)
    off = np.abs(curve(m) / t - 1)
    return replace(
        curve,
        intervals=_intervals(m, t, cuts),
        points=int(np.isfinite(t).sum()),
        error=float(np.nanmedian(off)),
    )


def _ranges(sums: Numbers, cuts: Sequence[int]) -> tuple[Numbers, Numbers]:
    """(alphas, betas) of ranges of sizes; ``sums``: shape (6, n)."""
    alpha, beta, _ = _lines(np.add.reduceat(sums, [0, *cuts], axis=1))
    return alpha, beta


def _intervals(m: Numbers, t: Numbers, cuts: Sequence[int]) -> tuple[Interval, ...]:
    if len(t) < 2:
        return ()
    draw, middle, found = np.random.default_rng(_SEED), np.nanmedian(t, axis=0), []
    each = np.nanmedian if np.isnan(t).any() else np.median  # which takes a tenth of the time
    for _ in range(_RESAMPLES):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a size that no drawn block has
            medians = each(t[draw.integers(len(t), size=len(t))], axis=0)
        medians = np.where(np.isnan(medians), middle, medians)
        found.append(np.concatenate(_ranges(_sums(m, medians), cuts)))
    low, high = np.percentile(np.array(found), [2.5, 97.5], axis=0)
    return tuple(zip(low.tolist(), high.tolist(), strict=True))
