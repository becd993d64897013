"""Curves fitted to measured times by least relative error, and fits as files.

The relative error of a time t and its prediction f is f/t − 1, so that 8 bytes weigh as much as 8
GB. A fit is versioned JSON; any other file is refused.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import log
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from busbar.errors import Unsupported
from busbar.files import read_text
from collectives.execution.shm.pass_plans import EAGER_BYTES, crossing_window_bytes
from collectives.predict.machine import Amounts, Costs, Curve, Interval, Shared
from topology.model.measured import BURST, TRIPS, Swept

MOST_EDGES = 4
# A range has at least so many sizes; its two parameters would fit fewer sizes trivially.
_FEWEST = 3
_RESAMPLES = 200
_SEED = 20070


def _sums(m: Amounts, t: Amounts) -> Amounts:
    """The terms of the normal equations of relative errors: shape (6, points)."""
    return np.stack([1 / t**2, m / t**2, m**2 / t**2, 1 / t, m / t, np.ones_like(t)])


def _lines(s: Amounts) -> tuple[Amounts, Amounts, Amounts]:
    """(alpha, beta, sum of squared errors) of the best lines, from sums of shape (6, …).

    Neither parameter may be negative: the best such pair is the unconstrained one, or has a zero.
    """
    aa, ab, bb, ya, yb, n = s
    with np.errstate(all="ignore"):
        # For a single size alpha is the whole time. The test is relative, because bytes and seconds
        # differ by orders of magnitude.
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


def _split(sums: Amounts, most: int) -> tuple[list[list[int]], list[float]]:
    """Cut sizes into 1, 2, … ranges with the least squared error, by dynamic programming.

    ``sums``: those of each size, shape (6, sizes). Returns the cuts and the error for each number.
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


def fit_curve(sizes: ArrayLike, times: ArrayLike, *, most: int = MOST_EDGES) -> Curve:
    """Fit the curve of least relative error through the medians of blocks of times.

    ``sizes``: bytes, shape (n,), rising; ``times``: seconds, shape (blocks, n), NaN where a block
    has none. The best cuts are found for each number of ranges; the number with the least Schwarz
    (1978) criterion is chosen, n·ln(error/n) + parameters·ln n, with three parameters per range.
    Intervals are the 2.5 and 97.5 percentiles over whole blocks drawn with replacement, with fixed
    cuts; the draws are seeded. Raises ValueError without a positive time at two sizes.
    """
    m, t = np.asarray(sizes, float), np.asarray(times, float)
    t = np.where(np.isfinite(t) & (t > 0), t, np.nan)
    measured = ~np.isnan(t).all(axis=0)
    if measured.sum() < 2:
        raise ValueError("times at two sizes at least are needed")
    m, t = m[measured], t[:, measured]
    n = len(m)
    whole = _sums(m, np.nanmedian(t, axis=0))
    ways, errors = _split(whole, min(most, max(0, n // _FEWEST - 1)))
    scores = [
        n * np.log(max(error, 1e-12) / n) + 3 * (k + 1) * np.log(n)
        for k, error in enumerate(errors)
    ]
    cuts = ways[int(np.argmin(scores))]
    alpha, beta = _ranges(whole, cuts)
    # An edge is the geometric mean of two sizes: the change is somewhere between them.
    edges = tuple(float(np.sqrt(m[c - 1] * m[c])) for c in cuts)
    curve = Curve(tuple(alpha.tolist()), tuple(beta.tolist()), edges)
    off = np.abs(curve(m) / t - 1)
    return replace(
        curve,
        intervals=_intervals(m, t, cuts),
        points=int(np.isfinite(t).sum()),
        error=float(np.nanmedian(off)),
    )


def _ranges(sums: Amounts, cuts: Sequence[int]) -> tuple[Amounts, Amounts]:
    """(alphas, betas) of ranges of sizes; ``sums``: shape (6, n)."""
    alpha, beta, _ = _lines(np.add.reduceat(sums, [0, *cuts], axis=1))
    return alpha, beta


def _intervals(m: Amounts, t: Amounts, cuts: Sequence[int]) -> tuple[Interval, ...]:
    if len(t) < 2:
        return ()
    draw, middle, resampled = np.random.default_rng(_SEED), np.nanmedian(t, axis=0), []
    each = np.nanmedian if np.isnan(t).any() else np.median  # np.median takes a tenth of the time
    for _ in range(_RESAMPLES):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a size that no drawn block has
            medians = each(t[draw.integers(len(t), size=len(t))], axis=0)
        medians = np.where(np.isnan(medians), middle, medians)
        resampled.append(np.concatenate(_ranges(_sums(m, medians), cuts)))
    low, high = np.percentile(np.array(resampled), [2.5, 97.5], axis=0)
    return tuple(zip(low.tolist(), high.tolist(), strict=True))


KEY = "busbar_fit"
VERSION = 1
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class Fit:
    """Costs measured with one or more numbers of ranks; ``name``: the file they are from."""

    costs: tuple[Costs, ...]
    name: str = "fit"

    def for_ranks(self, nranks: int) -> Costs:
        """The costs measured with ``nranks`` ranks, or with the nearest number and a note on it.

        Ranks that share cores or memory slow each other down, so costs should be measured with as
        many ranks as the run will have.
        """
        best = min(self.costs, key=lambda c: abs(log(max(1, c.ranks) / nranks)))
        if best.ranks == nranks:
            return best
        note = f"measured with {best.ranks} ranks, not with {nranks}"
        return replace(best, notes=(*best.notes, note))

    @property
    def sources(self) -> frozenset[str]:
        """SHA-256 of all files on which the costs were fitted."""
        return frozenset(source for costs in self.costs for source in costs.sources)


def digest(data: bytes) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def dump_fit(costs: Sequence[Costs]) -> str:
    """Costs as JSON text."""
    return json.dumps({KEY: VERSION, "costs": [asdict(one) for one in costs]}, indent=1) + "\n"


def read_fit(path: Path) -> Fit:
    """Read the fit in a file. Raises Unsupported with the file's name and the problem."""
    text = read_text(path, _MOST_BYTES)
    try:
        return replace(load_fit(text), name=str(path))
    except Unsupported as error:
        raise Unsupported(f"{path}: {error}") from None


def load_fit(text: str) -> Fit:
    """Read the fit in a JSON text. Raises Unsupported with the problem."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise Unsupported("no fit: it is no JSON") from None
    if not isinstance(document, dict) or KEY not in document:
        raise Unsupported(f"no fit: no {KEY!r} in it; busbar collectives fit writes one")
    if document[KEY] != VERSION:
        raise Unsupported(
            f"version {str(document[KEY])[:40]!r} of a fit is not {VERSION}; fit again"
        )
    try:
        costs = tuple(_costs(one) for one in document["costs"])
    except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        raise Unsupported(f"malformed fit: {type(error).__name__} {error}") from None
    if not costs:
        raise Unsupported("malformed fit: it has no costs")
    return Fit(costs)


def _costs(one: object) -> Costs:
    costs = msgspec.convert(one, Costs)
    if not costs.links:
        raise ValueError("no class of links")
    if any(len(row) != len(costs.table) for row in costs.table):
        raise ValueError("table is not square")
    if not 0 <= costs.start < float("inf"):
        raise ValueError(f"start {costs.start!r} is no time")
    return costs


#: Number of messages that a rank sends in an iteration of each kind.
_SENDS = {"trip": TRIPS, "burst": BURST * TRIPS, "still": 1, "sum": 1}
_FEWEST_SIZES = 2


def fit_shared_memory(
    kinds: Mapping[str, Sequence[Swept]],
    fit: Callable[[Sequence[Swept]], Curve],
    nranks: int,
    cores: int,
) -> Shared | None:
    """The costs of one class of link; None if the sweep has too few eager or too few larger sizes.

    ``fit``: makes a curve from samples. ``nranks`` on ``cores``: those of the sweep; they determine
    the size of windows.
    """
    small = {kind: _part(kinds.get(kind, ()), each, True) for kind, each in _SENDS.items()}
    large = {kind: _part(kinds.get(kind, ()), each, False) for kind, each in _SENDS.items()}
    large["trip"] = [_alone(one, crossing_window_bytes(nranks, cores)) for one in large["trip"]]
    wanted = (*small.values(), large["trip"], large["still"], large["sum"])
    if any(len({one.nbytes for one in part}) < _FEWEST_SIZES for part in wanted):
        return None
    mail = (fit(small[kind]) for kind in ("trip", "still", "sum", "burst"))
    return Shared(*mail, *(fit(large[kind]) for kind in ("trip", "still", "sum")))


def _part(samples: Sequence[Swept], each: int, small: bool) -> list[Swept]:
    """Samples whose messages went through mailboxes (``small``), or all other samples."""
    return [one for one in samples if (one.nbytes * each <= EAGER_BYTES) is small]


def _alone(one: Swept, window: int) -> Swept:
    """Correct a trip of several windows to the time without overlapping hops.

    In an iteration of h hops over w windows, h + w − 1 rounds follow each other
    (docs/shared-memory.md): in each, a hop moves one window; without overlap a hop takes w rounds.
    """
    hops, windows = 2 * TRIPS, -(-one.nbytes // window)
    share = hops * windows / (hops + windows - 1)
    return one._replace(seconds=tuple(time * share for time in one.seconds))
