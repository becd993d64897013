"""How long a rank computes between exchanges, and how it spends that time.

A law gives the seconds of one rank's whole step: forward and backward pass, or one gradient of a
parameter server's learner. The tensors' shares divide the backward pass.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import comb

import numpy as np
from numpy.typing import NDArray

#: The forward pass's part of a step. A backward pass computes gradients of inputs and of weights,
#: and so takes twice as long.
FORWARD = 1 / 3
# Rows of the matrix that a burning rank multiplies between two readings of the clock.
_BURN = 32
# Times that are drawn at once.
_BLOCK = 64


class Compute(ABC):
    """Seconds for each (rank, step, tensor), by a law. The same arguments give the same seconds.

    ``label``: the law as the option names it, such as ``exp:20``. ``slow``: factors of ranks that
    are slower (``--straggler``). The others are about ranks without a factor. ``mean``: E[X], the
    mean seconds of a step. ``constant``: whether all times are equal. ``memoryless``: whether a
    computation that has run for a while is expected to take as long again as a new one.
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
        """The ranks with the least factor of ``--straggler``: the base of a speed-up."""
        factors = {rank: self.slow.get(rank, 1.0) for rank in ranks}
        least = min(factors.values(), default=1.0)
        return [rank for rank, factor in factors.items() if factor == least]

    def ready(self, rank: int, step: int, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds from a step's start until each tensor's gradient is ready, the last tensor first.

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
        """See `Compute.draw`. Warm-up steps have negative numbers.

        Times are drawn in blocks. A generator for each would take 20 us, which would delay every
        computation if many learners share an interpreter.
        """
        if self.constant:
            return self._shift
        number, within = divmod(step % 2**32, _BLOCK)  # seeds may not be negative
        block = self._drawn.get(rank)
        if block is None or block[0] != number:
            random = np.random.default_rng([self._seed, rank, number])
            block = number, random.exponential(self._scale, _BLOCK)
            self._drawn[rank] = block
        return self._shift + float(block[1][within])

    def smallest(self, k: int, p: int) -> float:
        """See `Compute.smallest`: the shift and scale × (H_p − H_{p−k}) (Rényi 1953)."""
        return self._shift + self._scale * sum(1 / n for n in range(p - k + 1, p + 1))


class Replay(Compute):
    """Recorded seconds: ``table`` has a row for each step and a column for each rank, repeated."""

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
        """See `Compute.smallest`: for times that are drawn from the table with replacement.

        Each time is weighted by the increase of the binomial tail P(Bin(p, q) ≥ k) at it.
        """
        q = np.arange(self._sorted.size + 1) / self._sorted.size
        tail = sum(comb(p, j) * q**j * (1 - q) ** (p - j) for j in range(k, p + 1))
        return float(self._sorted @ np.diff(tail))


def spend_until(moment: float, burn: bool = False) -> None:
    """Return when ``time.perf_counter()`` has reached ``moment``.

    The rank sleeps, like a host whose accelerator computes. With ``burn`` it keeps its core busy,
    like a host that computes itself; more ranks than cores then slow each other down.
    """
    if not burn:
        rest = moment - time.perf_counter()
        if rest > 0:
            time.sleep(rest)
        return
    matrix = np.eye(_BURN)
    while time.perf_counter() < moment:
        matrix = matrix @ matrix


# linux/prctl.h.
_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30


@contextmanager
def prompt_timers() -> Iterator[None]:
    """Let this thread's sleeps end on time inside the context.

    Linux lets a timer of SCHED_OTHER fire up to 50 us late (prctl(2), PR_SET_TIMERSLACK); here it
    is 1 ns. Threads and processes that are started inside inherit it.
    """
    if sys.platform != "linux":
        yield
        return
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    before = prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)
    prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_TIMERSLACK, before, 0, 0, 0)


@contextmanager
def one_core() -> Iterator[None]:
    """Run this thread, and others with the same affinity, on one core inside the context.

    Threads of one interpreter take turns. The next one wakes within a few us on the same core, and
    within some tens of us on another core that was idle.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
