"""A rank's compute time between exchanges, drawn from a distribution, and how it is spent.

This module knows nothing of exchanges. A distribution gives the seconds of one rank's whole step
(forward and backward, or one gradient of a parameter server's learner). The tensors' shares divide
the backward part.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from math import comb

import numpy as np
from numpy.typing import NDArray

#: The forward pass's part of a step: a backward pass computes gradients of inputs and of weights,
#: and so takes twice as long.
FORWARD = 1 / 3
# Rows of the matrix that a burning rank multiplies between two looks at the clock.
_BURN = 32
# Times that are drawn at once.
_BLOCK = 64


class Compute(ABC):
    """Seconds per (rank, step, tensor), by a law. The same question always has the same answer.

    ``label``: the law as it was asked for, such as ``exp:20``. ``slow``: factors of ranks that are
    slower (``--straggler``). Without these: ``mean`` is E[X], the mean seconds of a step;
    ``constant`` whether every time is the same; ``memoryless`` whether a time that has begun lasts
    as long again as a new one.
    """

    def __init__(
        self,
        label: str,
        slow: dict[int, float] | None,
        mean: float,
        *,
        constant: bool,
        memoryless: bool = False,
    ) -> None:
        self.label, self.slow, self.mean = label, slow or {}, mean
        self.constant, self.memoryless = constant, memoryless

    @abstractmethod
    def draw(self, rank: int, step: int) -> float:
        """X: seconds of a rank's step by the law, without stragglers."""

    @abstractmethod
    def smallest(self, k: int, p: int) -> float:
        """E[X_{k:p}], the expected k-th smallest of p independent times of the law."""

    def seconds(self, rank: int, step: int) -> float:
        """Seconds of a rank's step."""
        return self.draw(rank, step) * self.slow.get(rank, 1.0)

    def fastest(self, ranks: Iterable[int]) -> list[int]:
        """Those of some ranks that ``--straggler`` makes slower least: the base of a speed-up."""
        found = list(ranks)
        least = min((self.slow.get(rank, 1.0) for rank in found), default=1.0)
        return [rank for rank in found if self.slow.get(rank, 1.0) == least]

    def ready(self, rank: int, step: int, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds from a step's start until each tensor's gradient is there, the last one first.

        ``shares``: `Workload.shares`.
        """
        whole = self.seconds(rank, step)
        return whole * FORWARD + np.cumsum(whole * (1 - FORWARD) * shares)


class Exponential(Compute):
    """``shift`` plus an exponential of mean ``scale``, drawn from the seed.

    Times are i.i.d. over ranks and steps. Without a scale every time is the shift.
    """

    def __init__(
        self,
        label: str,
        scale: float,
        shift: float = 0.0,
        seed: int = 0,
        slow: dict[int, float] | None = None,
    ) -> None:
        super().__init__(label, slow, shift + scale, constant=scale == 0, memoryless=shift == 0)
        self._scale, self._shift, self._seed = scale, shift, seed
        # The block of times that was drawn last for each rank: its number, and the times.
        self._drawn: dict[int, tuple[int, NDArray[np.float64]]] = {}

    def draw(self, rank: int, step: int) -> float:
        """See `Compute.draw`. Steps before the first are warm-ups.

        Times are drawn in blocks. A generator for each would take 20 us, and where many learners
        share an interpreter that would delay every computation.
        """
        if self.constant:
            return self._shift
        number, within = divmod(step % 2**32, _BLOCK)  # a seed sequence's are not negative
        known = self._drawn.get(rank)
        if known is None or known[0] != number:
            made = np.random.default_rng([self._seed, rank, number])
            known = number, made.exponential(self._scale, _BLOCK)
            self._drawn[rank] = known
        return self._shift + float(known[1][within])

    def smallest(self, k: int, p: int) -> float:
        """See `Compute.smallest`: the shift and scale × (H_p − H_{p−k}) (Rényi 1953)."""
        return self._shift + self._scale * sum(1 / n for n in range(p - k + 1, p + 1))


class Replay(Compute):
    """Seconds that were recorded: ``table`` has a row a step and a column a rank, both repeated."""

    def __init__(
        self, label: str, table: NDArray[np.float64], slow: dict[int, float] | None = None
    ) -> None:
        self._table, self._sorted = table, np.sort(table, axis=None)
        constant = bool(self._sorted[0] == self._sorted[-1])
        super().__init__(label, slow, float(table.mean()), constant=constant)

    def draw(self, rank: int, step: int) -> float:
        """See `Compute.draw`."""
        steps, ranks = self._table.shape
        return float(self._table[step % steps, rank % ranks])

    def smallest(self, k: int, p: int) -> float:
        """See `Compute.smallest`: of times that are drawn from the table with replacement.

        They are weighed with what the binomial tail P(Bin(p, q) ≥ k) gains at each.
        """
        q = np.arange(self._sorted.size + 1) / self._sorted.size
        tail = sum(comb(p, j) * q**j * (1 - q) ** (p - j) for j in range(k, p + 1))
        return float(self._sorted @ np.diff(tail))


def spend_until(moment: float, burn: bool = False) -> None:
    """Return when ``time.perf_counter()`` has come to ``moment``.

    Asleep, the rank leaves its core free, as a host does whose accelerator computes. With ``burn``
    the core is busy, as where the host itself computes; more ranks than cores then slow each other
    down.
    """
    if not burn:
        rest = moment - time.perf_counter()
        if rest > 0:
            time.sleep(rest)
        return
    matrix = np.eye(_BURN)
    while time.perf_counter() < moment:
        matrix = matrix @ matrix
