"""Training with a parameter server: what a server does with real gradients, and how they travel."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.steps.training.codecs import Codec, Feedback
from bench.steps.training.rates import Arrived, UpdateRule
from bench.steps.training.shared import SharedProblem, WeightHistory

Vector = NDArray[Any]
#: What a server keeps of earlier weights for a rule that asks for those that were read, in bytes.
_REMEMBERED = 64 << 20
_LEAST, _MOST = 16, 1024


class ServedTraining:
    """The hooks of `bench.steps.server.hooks.Training` for a problem that is trained for real."""

    def __init__(self, shared: SharedProblem, codec: Codec) -> None:
        self._shared, self._codec = shared, codec
        self.elements = shared.problem.shape.size
        self.dtype: np.dtype[Any] = np.dtype(np.float32)

    def learner(self, number: int) -> RealLearner:
        """That of a learner; one that joins late has a number of its own."""
        return RealLearner(self._shared, number)

    def server(self, part: slice) -> RealServer:
        """That of a part of the weights."""
        return RealServer(self._shared.problem.start()[part], self._shared.rule())

    def coding(self, places: Sequence[slice]) -> RealCoding:
        """A rank's own. ``places``: the servers' parts."""
        return RealCoding(self._codec, [place.stop - place.start for place in places])


class RealLearner:
    """Takes the next samples of its own with every gradient."""

    def __init__(self, shared: SharedProblem, number: int) -> None:
        self._shared, self._number, self._next = shared, number, 0

    def gradient(self, weights: Vector, version: int) -> Vector:
        """The gradient of these weights on the next samples."""
        found = self._shared.gradient(weights, self._number, self._next)
        self._next += 1
        return found


class RealServer:
    """A part of the weights, its rule, and what is kept for the curve of loss."""

    def __init__(self, weights: Vector, rule: UpdateRule) -> None:
        self.weights, self._rule = weights, rule
        self.updates = 0
        self.history = WeightHistory(weights)
        self._arrived: list[tuple[int, Arrived]] = []
        fits = _REMEMBERED // max(1, weights.nbytes)
        self._before: deque[Vector] = deque(maxlen=max(_LEAST, min(_MOST, fits)))
        self._remember()

    def apply(self, gradient: Vector, learner: int, staleness: int) -> None:
        """Take a learner's gradient in, of weights that were so many updates younger.

        Where that is longer ago than there are weights kept, the oldest are taken for them.
        """
        read = None
        if self._rule.remembers:
            read = self._before[-1 - min(staleness, len(self._before) - 1)]
        self._arrived.append((learner, Arrived(gradient.copy(), staleness, read)))

    def update(self, count: int) -> None:
        """Make the next weights of the gradients since the last.

        They are added by learner, not as they came: so the same gradients give the same bits.
        """
        self._arrived.sort(key=lambda one: one[0])
        with np.errstate(all="ignore"):  # what diverges is seen in the loss
            self._rule(self.weights, [arrived for _, arrived in self._arrived])
        self._arrived.clear()
        self.updates += 1
        self.history.add(self.updates, self.weights)
        self._remember()

    def _remember(self) -> None:
        if self._rule.remembers:
            self._before.append(self.weights.copy())


class RealCoding:
    """A codec with a memory for each server's part."""

    def __init__(self, codec: Codec, lengths: Sequence[int]) -> None:
        self._codec, self._lengths = codec, lengths
        self._feedback = [Feedback(codec, length) for length in lengths]

    def encode(self, gradient: Vector, server: int) -> Vector:
        """The bytes of a server's part of a gradient."""
        return self._feedback[server].encode(gradient)

    def decode(self, data: NDArray[np.uint8], server: int) -> Vector:
        """The part of a gradient whose bytes have come."""
        return self._codec.decode(data, self._lengths[server])
