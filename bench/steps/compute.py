"""A rank's compute time between exchanges, drawn from a distribution, and how it is spent.

This module knows nothing of exchanges. A distribution gives the seconds of one rank's whole step
(forward and backward, or one gradient of a parameter server's learner). The tensors' shares divide
the backward part.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: The forward pass's part of a step: a backward pass computes gradients of inputs and of weights,
#: and so takes twice as long.
FORWARD = 1 / 3
# Rows of the matrix that a burning rank multiplies between two looks at the clock.
_BURN = 32
# Times that are drawn at once.
_BLOCK = 64


class StepTimes(NamedTuple):
    """Seconds of a rank's step: the forward pass, then each tensor's backward, last first."""

    forward: float
    backward: NDArray[np.float64]

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return self.forward + float(self.backward.sum())

    @property
    def ready(self) -> NDArray[np.float64]:
        """Seconds from the step's start until each tensor's gradient is there."""
        return self.forward + np.cumsum(self.backward)


class Compute(ABC):
    """Seconds per (rank, step, tensor). The same question always has the same answer.

    ``label``: the law as it was asked for, such as ``exp:20``. ``slow``: factors of ranks that are
    slower (``--straggler``). ``forward``: the forward pass's part.
    """

    def __init__(self, label: str, slow: dict[int, float] | None = None) -> None:
        self.label, self.slow, self.forward = label, slow or {}, FORWARD

    @property
    @abstractmethod
    def mean(self) -> float:
        """E[X]: the mean seconds of a step by the law, without stragglers."""

    @abstractmethod
    def draw(self, rank: int, step: int) -> float:
        """X: seconds of a rank's step by the law, without stragglers."""

    def seconds(self, rank: int, step: int) -> float:
        """Seconds of a rank's step."""
        return self.draw(rank, step) * self.slow.get(rank, 1.0)

    def times(self, rank: int, step: int, shares: NDArray[np.float64]) -> StepTimes:
        """A rank's step in parts. ``shares``: `Workload.shares`."""
        whole = self.seconds(rank, step)
        return StepTimes(whole * self.forward, whole * (1 - self.forward) * shares)


class Fixed(Compute):
    """The same seconds for every rank and step; 0 for no compute at all."""

    def __init__(self, label: str, seconds: float, slow: dict[int, float] | None = None) -> None:
        super().__init__(label, slow)
        self._seconds = seconds

    @property
    def mean(self) -> float:
        """See `Compute.mean`."""
        return self._seconds

    def draw(self, rank: int, step: int) -> float:
        """See `Compute.draw`."""
        return self._seconds


class Exponential(Compute):
    """``shift`` plus an exponential of a mean, i.i.d. over ranks and steps; drawn from the seed."""

    def __init__(
        self,
        label: str,
        mean: float,
        shift: float = 0.0,
        seed: int = 0,
        slow: dict[int, float] | None = None,
    ) -> None:
        super().__init__(label, slow)
        self._scale, self._shift, self._seed = mean, shift, seed
        # Of every rank the block of times that was drawn last: its number, and they.
        self._drawn: dict[int, tuple[int, NDArray[np.float64]]] = {}

    @property
    def mean(self) -> float:
        """See `Compute.mean`."""
        return self._shift + self._scale

    @property
    def shift(self) -> float:
        """The least that a step takes."""
        return self._shift

    def draw(self, rank: int, step: int) -> float:
        """See `Compute.draw`. Steps before the first are warm-ups.

        Times are drawn in blocks: a generator of its own for each would take 20 us of what stands
        between new weights and a learner's computation where many share an interpreter.
        """
        number, within = divmod(step % 2**32, _BLOCK)  # a seed sequence's are not negative
        known = self._drawn.get(rank)
        if known is None or known[0] != number:
            made = np.random.default_rng([self._seed, rank, number])
            known = number, made.exponential(self._scale, _BLOCK)
            self._drawn[rank] = known
        return self._shift + float(known[1][within])


class Replay(Compute):
    """Seconds that were recorded: ``table`` has a row a step and a column a rank, both repeated."""

    def __init__(
        self, label: str, table: NDArray[np.float64], slow: dict[int, float] | None = None
    ) -> None:
        super().__init__(label, slow)
        self._table = table

    @property
    def mean(self) -> float:
        """See `Compute.mean`."""
        return float(self._table.mean())

    @property
    def recorded(self) -> NDArray[np.float64]:
        """All that was recorded, of all ranks."""
        return self._table.ravel()

    def draw(self, rank: int, step: int) -> float:
        """See `Compute.draw`."""
        steps, ranks = self._table.shape
        return float(self._table[step % steps, rank % ranks])


def spend_until(moment: float, burn: bool = False) -> None:
    """Return when ``time.perf_counter()`` has come to ``moment``.

    Asleep: the rank's processor is free, as that of a host whose accelerator computes. Burning: it
    is busy, as where the host itself computes; more ranks than cores then slow each other down.
    """
    if not burn:
        rest = moment - time.perf_counter()
        if rest > 0:
            time.sleep(rest)
        return
    matrix = np.eye(_BURN)
    while time.perf_counter() < moment:
        matrix = matrix @ matrix
