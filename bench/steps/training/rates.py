"""Update rules: how a parameter server applies a gradient to the weights.

A rule serves one shard and keeps its state. It is told each gradient's staleness. It knows nothing
of processes, messages and versions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.steps.training.named import named
from busbar.errors import Unsupported

Vector = NDArray[Any]
_TINY = 1e-8


@dataclass(frozen=True)
class Arrived:
    """A gradient at the server.

    ``staleness``: updates between the weights that it was computed from and these. ``read``: those
    weights themselves, where the rule `remembers` them.
    """

    gradient: Vector
    staleness: int = 0
    read: Vector | None = None


class UpdateRule(ABC):
    """An update of one shard's weights from the gradients that it waits for."""

    remembers: bool = False
    """Whether it needs the weights that each gradient was computed from."""

    @abstractmethod
    def __call__(self, weights: Vector, arrived: Sequence[Arrived]) -> None:
        """Update the weights, in place, from one gradient or more, in their order."""


class FixedRate(UpdateRule):
    """w ← w − α · mean of the gradients: stochastic gradient descent."""

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def __call__(self, weights: Vector, arrived: Sequence[Arrived]) -> None:
        """See `UpdateRule`."""
        weights -= weights.dtype.type(self._rate) * mean(arrived)


class StalenessRate(UpdateRule):
    """α = α₀/⟨σ⟩, where ⟨σ⟩ is the mean staleness so far, but at least 1.

    Gupta, Zhang, Wang 2016 (Model accuracy and runtime tradeoff in distributed deep learning). The
    mean is measured over all gradients that this shard has seen.
    """

    def __init__(self, rate: float) -> None:
        self._rate, self._sum, self._seen = rate, 0, 0

    def __call__(self, weights: Vector, arrived: Sequence[Arrived]) -> None:
        """See `UpdateRule`."""
        self._sum += sum(one.staleness for one in arrived)
        self._seen += len(arrived)
        rate = self._rate / max(1.0, self._sum / self._seen)
        weights -= weights.dtype.type(rate) * mean(arrived)


class DistanceRate(UpdateRule):
    """η_j = min(C/‖w_j − w_τ(j)‖², η_max), for each gradient by itself.

    Dutta, Joshi, Ghosh, Dube, Nagpurkar 2018 (Slow and stale gradients can win the race), for one
    gradient an update; of several each is scaled by its own rate before their mean is taken. The
    distance is that of this shard's weights.
    """

    remembers = True

    def __init__(self, rate: float, *, c: float = 1.0) -> None:
        if not c > 0:
            raise Unsupported(f"rule distance: c must be above 0, not {c:g}")
        self._most, self._c = rate, c

    def __call__(self, weights: Vector, arrived: Sequence[Arrived]) -> None:
        """See `UpdateRule`."""
        rates = [self._at(weights, one) for one in arrived]
        if len(set(rates)) == 1:  # the bits are those of plain descent then
            weights -= rates[0] * mean(arrived)
            return
        scaled = (rate * one.gradient for rate, one in zip(rates, arrived, strict=True))
        weights -= mean([Arrived(gradient) for gradient in scaled])

    def _at(self, weights: Vector, one: Arrived) -> Any:
        assert one.read is not None, "this rule remembers what was read"
        apart = float(np.sum((weights - one.read).astype(np.float64) ** 2))
        rate = min(self._c / apart, self._most) if apart else self._most
        return weights.dtype.type(rate)


class Adagrad(UpdateRule):
    """w ← w − α g/√(Σ g²), element by element, with the sum over this shard's updates.

    Duchi, Hazan, Singer 2011; in each shard of the server as in Downpour (Dean et al. 2012).
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._squares: Vector | None = None

    def __call__(self, weights: Vector, arrived: Sequence[Arrived]) -> None:
        """See `UpdateRule`."""
        gradient = mean(arrived)
        if self._squares is None:
            self._squares = np.zeros_like(weights)
        self._squares += gradient**2
        weights -= weights.dtype.type(self._rate) * gradient / (np.sqrt(self._squares) + _TINY)


def mean(arrived: Sequence[Arrived]) -> Vector:
    """The mean of gradients, added in their order, which decides the last bits."""
    total: Vector = arrived[0].gradient.copy()
    for one in arrived[1:]:
        total += one.gradient
    if len(arrived) > 1:
        total /= total.dtype.type(len(arrived))
    return total


RULES: dict[str, Callable[..., UpdateRule]] = {
    "fixed": FixedRate,
    "staleness": StalenessRate,
    "distance": DistanceRate,
    "adagrad": Adagrad,
}


def rule(text: str, rate: float) -> Callable[[], UpdateRule]:
    """The constructor of a shard's rule: ``fixed``, ``staleness``, ``distance:c=0.5``, ``adagrad``.

    ``rate`` is α, α₀ or η_max. Raises Unsupported for an unknown name or a rate that is none.
    """
    if not 0 < rate < float("inf"):
        raise Unsupported(f"--rate {rate:g}: a rate is a number above 0")
    make = partial(named, "rule", text, {name: partial(kind, rate) for name, kind in RULES.items()})
    make()
    return make
