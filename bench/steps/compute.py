"""How long a rank computes between exchanges, and whether it sleeps or burns its core meanwhile.

A law is the distribution of the seconds of one rank's whole step: forward and backward pass, or one
gradient of a parameter server's learner. Each tensor takes its share of the backward pass.
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
# The number of times that are drawn at once.
_BLOCK = 64


class Compute(ABC):
    """Seconds for each (rank, step, tensor), by a law. The same arguments give the same seconds.

    ``label``: the law as the option names it, such as ``exp:20``. ``slow``: factors of ranks that
    are slower (``--straggler``). The other fields describe ranks without a factor. ``mean``: E[X],
    the mean seconds of a step. ``constant``: True if all times are equal. ``memoryless``: True if
    the expected remaining time of a computation does not depend on how long it has run.
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
        """X: seconds of a rank's step by the law, without the factor of ``--straggler``."""

    @abstractmethod
    def smallest(self, k: int, p: int) -> float:
        """E[X_{k:p}]: the expected value of the k-th smallest of p independent times of the law."""

    def seconds(self, rank: int, step: int) -> float:
        """Seconds of a rank's step, with the factor of ``--straggler``."""
        return self.draw(rank, step) * self.slow.get(rank, 1.0)

    def among(self, ranks: Iterable[int]) -> Compute:
        """The law of these ranks' times, such as those of learners without servers."""
        return self

    def fastest(self, ranks: Iterable[int]) -> list[int]:
        """The ranks with the smallest factor of ``--straggler``; a speed-up is relative to them."""
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

    Times are i.i.d. over ranks and steps. If the scale is 0, every time equals the shift.
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
        """Seconds of a rank's step, see `Compute.draw`. Warm-up steps have negative numbers.

        Times are drawn in blocks. To create a generator for each time would take 20 us, and would
        delay every computation if many learners share an interpreter.
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
        """The expected k-th smallest of p times: shift + scale × (H_p − H_{p−k}), H_n = Σ 1/i.

        Rényi 1953; see `Compute.smallest`.
        """
        return self._shift + self._scale * sum(1 / n for n in range(p - k + 1, p + 1))


class Replay(Compute):
    """Recorded seconds, repeated. ``table``: a row for each step and a column for each rank."""

    def __init__(
        self, label: str, table: NDArray[np.float64], slow: dict[int, float] | None = None
    ) -> None:
        self._table, self._sorted = table, np.sort(table, axis=None)
        constant = bool(self._sorted[0] == self._sorted[-1])
        super().__init__(label, slow, float(table.mean()), constant=constant)

    def draw(self, rank: int, step: int) -> float:
        """Seconds of a rank's step, drawn from the table; see `Compute.draw`."""
        steps, ranks = self._table.shape
        return float(self._table[step % steps, rank % ranks])

    def among(self, ranks: Iterable[int]) -> Replay:
        """The distribution of these ranks' times only: their columns of the table."""
        columns = [rank % self._table.shape[1] for rank in ranks]
        return Replay(self.label, self._table[:, columns], self.slow)

    def smallest(self, k: int, p: int) -> float:
        """The expected k-th smallest of p times, drawn from the table with replacement.

        Each sorted time is weighted by the step of the binomial tail P(Bin(p, q) ≥ k) at its
        quantile q. See `Compute.smallest`.
        """
        q = np.arange(self._sorted.size + 1) / self._sorted.size
        tail = sum(comb(p, j) * q**j * (1 - q) ** (p - j) for j in range(k, p + 1))
        return float(self._sorted @ np.diff(tail))


def spend_until(moment: float, burn: bool = False) -> None:
    """Return when ``time.perf_counter()`` has reached ``moment``.

    The rank sleeps, like a host whose accelerator computes. With ``burn`` the rank keeps its core
    busy, like a host that computes itself; more ranks than cores then slow each other down.
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
    """A context in which this thread's sleeps end on time.

    By default Linux lets a timer of SCHED_OTHER fire up to 50 us late (prctl(2),
    PR_SET_TIMERSLACK); here 1 ns. Threads and processes that are started inside inherit the limit.
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
    """A context in which this thread runs on one core, as do other threads that use this context.

    Threads of one interpreter take turns. On the same core the next thread wakes within a few us,
    on another core that was idle within some tens of us.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
