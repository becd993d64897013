"""Overlap of a non-blocking collective with computation, as IMB-NBC defines it.

The rank starts the library's collective, computes for about as long as the collective takes by
itself, and waits for the rest. Intel MPI Benchmarks, User Guide, "Measuring Communication and
Computation Overlap".
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from collectives.execution.transport import Action, Start, Wrapper
from collectives.execution.world import World
from reports.records.measurement import Overlap

_FEWEST, _MOST, _WARMUP, _BUDGET_S = 3, 30, 2, 2.0
# A vector that stays in the nearest cache, and how much of it is timed to know its speed.
_ELEMENTS, _TRIAL = 512, 200


def measure_overlap(action: Action, world: World, alone: float, most: int) -> Overlap:
    """Measure on all ranks together; all get the same.

    ``alone``: seconds of the collective by itself. Of each round those of the rank count that took
    longest, and of all rounds the medians: ``most`` at most, 3 to 30, for about two seconds.
    """
    both = _Overlapped(action, alone)
    rounds = max(_FEWEST, min(most, _MOST, int(_BUDGET_S / (2 * alone)) if alone > 0 else _MOST))
    spans = both.spans(rounds + _WARMUP, Start(world.barrier))
    together, computing = (
        median(world.combine(seconds[_WARMUP:], "max").tolist())
        for seconds in (spans.seconds, np.array(both.computing))
    )
    return Overlap(alone, computing, together)


class _Overlapped(Wrapper):
    """A non-blocking collective with computing in its midst; `computing`: how long that took."""

    def __init__(self, action: Action, seconds: float) -> None:
        self.action, self.computing = action, list[float]()
        self._vector, self._times = np.ones(_ELEMENTS), _TRIAL
        best = min([self._compute() for _ in range(4)][1:])
        self._times = max(1, round(seconds / best * _TRIAL))
        # Made once: nothing but the collective and the computing is inside the clock.
        self._work = lambda: self.computing.append(self._compute())

    def __call__(self) -> None:
        """See `Action.__call__`."""
        self.action.over(self._work)

    def _compute(self) -> float:
        """Compute for about the seconds asked for, in cache and without the system.

        Returns how long it really took.
        """
        start, vector = time.perf_counter(), self._vector
        for _ in range(self._times):
            np.multiply(vector, 1.0, out=vector)
        return time.perf_counter() - start
