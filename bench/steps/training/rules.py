"""Update rules: how a parameter server updates weights from gradients and their staleness.

A rule serves one shard and keeps its state. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.steps.training.codecs import make_by_name
from busbar.errors import Unsupported

Vector = NDArray[Any]
_TINY = 1e-8


@dataclass(frozen=True)
class ReceivedGradient:
    """A gradient at the server.

    ``staleness``: how many updates older the weights are from which it was computed. ``read``:
    these older weights, if the rule needs them (`UpdateRule.remembers`).
    """

    gradient: Vector
    staleness: int = 0
    read: Vector | None = None


class UpdateRule(ABC):
    """Updates one shard's weights."""

    remembers: bool = False
    """Whether it needs the weights from which each gradient was computed."""

    @abstractmethod
    def __call__(self, weights: Vector, gradients: Sequence[ReceivedGradient]) -> None:
        """Update the weights in place from one or more gradients, in this order."""


class FixedRate(UpdateRule):
    """w ← w − α · mean of the gradients: stochastic gradient descent."""

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def __call__(self, weights: Vector, gradients: Sequence[ReceivedGradient]) -> None:
        """See `UpdateRule`."""
        weights -= weights.dtype.type(self._rate) * mean(gradients)


class StalenessRate(UpdateRule):
    """α = α₀/⟨σ⟩, where ⟨σ⟩ is the mean staleness so far, but at least 1.

    Gupta, Zhang, Wang 2016 (Model accuracy and runtime tradeoff in distributed deep learning). The
    mean is over all gradients that this shard has received.
    """

    def __init__(self, rate: float) -> None:
        self._rate, self._sum, self._count = rate, 0, 0

    def __call__(self, weights: Vector, gradients: Sequence[ReceivedGradient]) -> None:
        """See `UpdateRule`."""
        self._sum += sum(gradient.staleness for gradient in gradients)
        self._count += len(gradients)
        rate = self._rate / max(1.0, self._sum / self._count)
        weights -= weights.dtype.type(rate) * mean(gradients)


class DistanceRate(UpdateRule):
    """η_j = min(C/‖w_j − w_τ(j)‖², η_max), for each gradient by itself.

    Dutta, Joshi, Ghosh, Dube, Nagpurkar 2018 (Slow and stale gradients can win the race), for one
    gradient an update. With several, each is scaled by its own rate before the mean. The distance
    is that of this shard's weights.
    """

    remembers = True

    def __init__(self, rate: float, *, c: float = 1.0) -> None:
        if not c > 0:
            raise Unsupported(f"rule distance: c must be above 0, not {c:g}")
        self._most, self._c = rate, c

    def __call__(self, weights: Vector, gradients: Sequence[ReceivedGradient]) -> None:
        """See `UpdateRule`."""
        rates = [self._rate(weights, received) for received in gradients]
        if len(set(rates)) == 1:  # the bits are those of plain descent then
            weights -= rates[0] * mean(gradients)
            return
        scaled = [rate * each.gradient for rate, each in zip(rates, gradients, strict=True)]
        weights -= mean([ReceivedGradient(gradient) for gradient in scaled])

    def _rate(self, weights: Vector, received: ReceivedGradient) -> Any:
        assert received.read is not None, "this rule remembers"
        distance = float(np.sum((weights - received.read).astype(np.float64) ** 2))
        rate = min(self._c / distance, self._most) if distance else self._most
        return weights.dtype.type(rate)


class Adagrad(UpdateRule):
    """w ← w − α g/√(Σ g²), element by element, with the sum over this shard's updates.

    Duchi, Hazan, Singer 2011; in each shard of the server as in Downpour (Dean et al. 2012).
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._squares: Vector | None = None

    def __call__(self, weights: Vector, gradients: Sequence[ReceivedGradient]) -> None:
        """See `UpdateRule`."""
        gradient = mean(gradients)
        if self._squares is None:
            self._squares = np.zeros_like(weights)
        self._squares += gradient**2
        weights -= weights.dtype.type(self._rate) * gradient / (np.sqrt(self._squares) + _TINY)


def mean(gradients: Sequence[ReceivedGradient]) -> Vector:
    """The mean of gradients, added in this order, which decides the last bits."""
    total: Vector = gradients[0].gradient.copy()
    for received in gradients[1:]:
        total += received.gradient
    if len(gradients) > 1:
        total /= total.dtype.type(len(gradients))
    return total


RULES: dict[str, Callable[..., UpdateRule]] = {
    "fixed": FixedRate,
    "staleness": StalenessRate,
    "distance": DistanceRate,
    "adagrad": Adagrad,
}


def rule(text: str, rate: float) -> Callable[[], UpdateRule]:
    """The constructor of a shard's rule: ``fixed``, ``staleness``, ``distance:c=0.5``, ``adagrad``.

    ``rate`` is α, α₀ or η_max. Raises Unsupported for an unknown name or a rate that is not above
    0.
    """
    if not 0 < rate < float("inf"):
        raise Unsupported(f"--rate {rate:g}: a rate is a number above 0")
    make = partial(
        make_by_name, "rule", text, {name: partial(kind, rate) for name, kind in RULES.items()}
    )
    make()
    return make
