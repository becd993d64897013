"""Find the iteration from which a series is steady, by change points. Pure; no I/O.

After Barrett, Bolz-Tereick, Killick, Mount and Tratt, "Virtual Machine Warmup Blows Hot and Cold"
(OOPSLA 2017): a series is steady in its last segments between change points whose medians agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from reports.statistics.change_points import cuts
from reports.statistics.inference import likeness
from reports.statistics.stability import ORDERED, unstable

Verdict = Literal["steady", "drifting", "bimodal", "never", "few"]
_BLOCKS = 100
_NOISE = 0.02
_ALIKE = 1.5


@dataclass(frozen=True)
class Steady:
    """The verdict on a series of iteration times.

    ``start``: the iteration, from 0, from which on the segments between changes have one median.
    ``changes``: iterations at which the median changes. ``few``: no verdict below 20 iterations.
    """

    verdict: Verdict
    start: int = 0
    changes: tuple[int, ...] = ()

    @property
    def warm_up(self) -> int:
        """The number of iterations before the steady state; 0 if the series is not steady."""
        return self.start if self.verdict == "steady" else 0

    def __str__(self) -> str:
        """The verdict in words, as ``steady from iteration 12``."""
        since = f" from iteration {self.start}" if self.start else ""
        return {
            "steady": f"steady{since}",
            "drifting": f"drifting{since}",
            "bimodal": f"bimodal{since}",
            "never": "never steady",
            "few": "too few iterations",
        }[self.verdict]


def steady(times: Sequence[float]) -> Steady:
    """Judge whether iterations become steady; ``times``: in seconds, in the order of measurement.

    Change points are searched in medians of at most a hundred blocks, longer if successive
    iterations correlate. Changes below 2 % do not count. ``never``: the last median holds for less
    than half of the series. ``drifting``, ``bimodal``: by `unstable`, without the warm-up.
    """
    t = np.asarray(times, dtype=float)
    if len(t) < ORDERED or not t.min() > 0:
        return Steady("few")
    # The quarter with the least correlation counts, because a change of level raises it. With the
    # correlation r, (1 + r) / (1 − r) values count as one independent value.
    r = min(likeness([part]) for part in np.array_split(t, 4))
    alike = (1 + r) / (1 - r)
    width = max(ceil(len(t) / _BLOCKS), ceil(alike) if alike > _ALIKE else 1)
    medians = [float(np.median(t[at : at + width])) for at in range(0, len(t), width)]
    places = cuts([list(enumerate(medians))], _NOISE)[0] if len(medians) >= ORDERED else []
    changes = _placed(t, [one.at * width for one in places])
    start = _start(t, changes)
    if len(t) - start < len(t) / 2:
        return Steady(_of_levels(_levels(t, changes)), 0, changes)
    kinds = {one.kind for one in unstable(t[start:].tolist())}
    verdict: Verdict = (
        "bimodal" if "modes" in kinds else "drifting" if "drift" in kinds else "steady"
    )
    return Steady(verdict, start, changes)


def _placed(t: NDArray[np.float64], changes: Sequence[int]) -> tuple[int, ...]:
    """Locate changes to the iteration: the split with the least absolute residuals on both sides.

    Ranks of blocks show reliably that there is a change, but not exactly where.
    """
    edges = [0, *changes, len(t)]
    places = []
    for a, at, b in zip(edges, edges[1:], edges[2:], strict=False):
        before, after = (abs(t[a:b] - np.median(part)) for part in (t[a:at], t[at:b]))
        rest = np.cumsum(before)[:-1] + (after.sum() - np.cumsum(after)[:-1])
        places.append(a + 1 + int(np.argmin(rest)))
    return tuple(places)


def _levels(t: NDArray[np.float64], changes: Sequence[int]) -> list[float]:
    return [float(np.median(t[a:b])) for a, b in pairwise([0, *changes, len(t)])]


def _start(t: NDArray[np.float64], changes: Sequence[int]) -> int:
    """The first iteration of the last segments whose medians agree with the last (within 2 %).

    ``changes``: the iterations at which segments after the first one begin.
    """
    levels, starts = _levels(t, changes), [0, *changes]
    at = len(starts) - 1
    while at and abs(levels[at - 1] / levels[-1] - 1) <= _NOISE:
        at -= 1
    return starts[at]


def _of_levels(levels: Sequence[float]) -> Verdict:
    """``drifting`` if three or more segments' medians only rise, or only fall; else ``never``."""
    steps = np.sign(np.diff(levels))
    return "drifting" if len(levels) > 2 and abs(steps.sum()) == len(steps) else "never"
