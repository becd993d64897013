"""Distributions of the compute time of a gradient, with known order statistics. Pure; seconds."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Law(Protocol):
    """Compute times, independent and of one law for all learners."""

    @property
    def mean(self) -> float:
        """E[X]."""
        ...

    @property
    def memoryless(self) -> bool:
        """Whether a time that has begun lasts as long again as a new one."""
        ...

    @property
    def constant(self) -> bool:
        """Whether every time is the same."""
        ...

    def smallest(self, k: int, p: int) -> float:
        """E[X_{k:p}], the expected k-th smallest of p times."""
        ...


class ExponentialLaw(NamedTuple):
    """A shift, and exponential from there. Without a scale every time is the shift."""

    scale: float
    shift: float = 0.0

    @property
    def mean(self) -> float:
        """See `Law`."""
        return self.shift + self.scale

    @property
    def memoryless(self) -> bool:
        """See `Law`."""
        return self.shift == 0

    @property
    def constant(self) -> bool:
        """See `Law`."""
        return self.scale == 0

    def smallest(self, k: int, p: int) -> float:
        """See `Law`: the shift and scale × (H_p − H_{p−k}) (Rényi 1953)."""
        return self.shift + self.scale * sum(1 / n for n in range(p - k + 1, p + 1))


class EmpiricalLaw:
    """Times that were measured, drawn with replacement."""

    def __init__(self, times: Sequence[float] | NDArray[np.float64]) -> None:
        self._times = np.sort(np.asarray(times, np.float64))
        self.mean = float(self._times.mean())
        self.constant = bool(self._times[0] == self._times[-1])
        self.memoryless = False

    def smallest(self, k: int, p: int) -> float:
        """See `Law`: times weighed with what the binomial tail P(Bin(p, q) ≥ k) gains at each."""
        q = np.arange(len(self._times) + 1) / len(self._times)
        tail = sum(comb(p, j) * q**j * (1 - q) ** (p - j) for j in range(k, p + 1))
        return float(self._times @ np.diff(tail))
