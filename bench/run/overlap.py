"""Overlap of a non-blocking collective with computation, as IMB-NBC defines it.

The rank starts the library's collective, computes for about as long as the collective takes by
itself, and waits for the rest. Intel MPI Benchmarks, User Guide, "Measuring Communication and
Computation Overlap".
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import numpy as np

from collectives.execution.transport import Action
from collectives.execution.world import World
from reports.records.measurement import Overlap

_FEWEST, _MOST, _WARMUP, _BUDGET_S = 3, 30, 2, 2.0
# A vector that stays in the nearest cache, and how much of it is timed to know its speed.
_ELEMENTS, _TRIAL = 512, 200


def measure_overlap(
    action: Action, world: World, clock: Callable[[], float], alone: float, most: int
) -> Overlap:
    """Measure on all ranks together; all get the same.

    ``alone``: seconds of the collective by itself. Of each round those of the rank count that took
    longest, and of all rounds the medians: ``most`` at most, 3 to 30, for about two seconds.
    """
    work = _Computing(clock, alone)
    rounds = max(_FEWEST, min(most, _MOST, int(_BUDGET_S / (2 * alone)) if alone > 0 else _MOST))
    spent = np.empty((rounds + _WARMUP, 2))
    for row in spent:
        world.barrier()
        start = clock()
        action.over(work)
        row[:] = clock() - start, work.spent
    everyone = zip(*world.gather(spent[_WARMUP:].tolist()), strict=True)
    slowest = [max(of_ranks) for of_ranks in everyone]
    together, computing = (median(one[n] for one in slowest) for n in (0, 1))
    return Overlap(alone, computing, together)


class _Computing:
    """Computes for about so many seconds, in cache and without the system.

    ``spent``: how long it really took the last time.
    """

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock, self.spent = clock, 0.0
        self._vector = np.ones(_ELEMENTS)
        self._times = _TRIAL
        self()
        best = min(self.timed() for _ in range(3))
        self._times = max(1, round(seconds / best * _TRIAL))

    def timed(self) -> float:
        """Compute once; gives the seconds that it took."""
        self()
        return self.spent

    def __call__(self) -> None:
        """Compute once."""
        start, vector = self._clock(), self._vector
        for _ in range(self._times):
            np.multiply(vector, 1.0, out=vector)
        self.spent = self._clock() - start
