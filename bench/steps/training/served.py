"""Training with a parameter server: the hooks that handle real gradients."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.steps.training.codecs import Codec, Feedback
from bench.steps.training.rates import Arrived, FixedRate, UpdateRule
from bench.steps.training.shared import SharedProblem, WeightHistory, apart, losses
from bench.steps.training.telling import (
    Facts,
    Lines,
    compressed_lines,
    curve_facts,
    curve_lines,
    relative_error,
)

Vector = NDArray[Any]
#: Bytes of earlier weights that a server keeps, for rules that need the weights that were read.
_REMEMBERED = 64 << 20
_LEAST, _MOST = 16, 1024
#: Elements of a gradient that its error is worked out from at most.
_MOST_CHECKED = 1 << 20


class CodedTraining(ABC):
    """The hooks of `bench.steps.server.hooks.Training` where gradients are float32 and coded."""

    def __init__(self, elements: int, codec: Codec) -> None:
        self.elements, self._codec = elements, codec
        self.dtype: np.dtype[Any] = np.dtype(np.float32)

    def coding(self, places: Sequence[slice]) -> GradientCoding:
        """A rank's own. ``places``: the servers' parts."""
        return GradientCoding(self._codec, [place.stop - place.start for place in places])

    @abstractmethod
    def example(self) -> Vector:
        """A gradient."""

    def told(
        self, kept: Sequence[Any], moments: Sequence[float], alike: bool
    ) -> tuple[Facts, Lines]:
        """Cost and error of compressing a gradient, from one example without error feedback."""
        if self._codec.name == "none":
            return {}, []
        gradient = self.example()[:_MOST_CHECKED]
        start = time.perf_counter()
        wire = self._codec.encode(gradient)
        encoded = time.perf_counter()
        back = self._codec.decode(wire, len(gradient))
        each = np.array([encoded - start, time.perf_counter() - encoded]) / len(gradient)
        encode, decode = (each * self.elements).tolist()
        off = relative_error(back, gradient)
        bits = 8 * self._codec.nbytes(self.elements) / self.elements
        facts = {"bits_per_element": bits, "encode_s": encode, "decode_s": decode}
        facts["gradient_error"] = off if np.isfinite(off) else None
        return facts, compressed_lines(self._codec.name, bits, "a gradient", off, encode, decode)


class ProblemTraining(CodedTraining):
    """A problem that is trained for real."""

    def __init__(self, shared: SharedProblem, codec: Codec) -> None:
        super().__init__(shared.problem.shape.size, codec)
        self._shared = shared

    def example(self) -> Vector:
        """The first of the first learner."""
        return self._shared.gradient(self._shared.problem.start(), 0, 0)

    def told(
        self, kept: Sequence[Any], moments: Sequence[float], alike: bool
    ) -> tuple[Facts, Lines]:
        """The curve of loss; and how far synchronous weights are from one process's."""
        problem, joined = self._shared.problem, _joined(kept)
        points = losses(problem, joined, lambda n: moments[n - 1] if n else 0.0)
        facts, lines = curve_facts(points), curve_lines(points)
        if alike:
            found = apart(self._shared, joined)
            facts["apart"] = found._asdict()
            lines += found.lines()
        more, last = super().told(kept, moments, alike)
        return facts | more, lines + last

    def learner(self, number: int) -> RealLearner:
        """That of a learner; one that joins late has a number of its own."""
        return RealLearner(self._shared, number)

    def server(self, part: slice) -> RealServer:
        """That of a part of the weights."""
        return RealServer(self._shared.problem.start()[part], self._shared.rule())


class NoiseTraining(CodedTraining):
    """Arrays of a model's size: gradients are random, and mean nothing."""

    def __init__(self, elements: int, codec: Codec, seed: int) -> None:
        super().__init__(elements, codec)
        self._seed = seed

    def example(self) -> Vector:
        """The first learner's."""
        return self.learner(0).gradient(np.empty(0), 0)

    def learner(self, number: int) -> NoiseLearner:
        """That of a learner."""
        random = np.random.default_rng((self._seed, number))
        return NoiseLearner(random.standard_normal(self.elements, np.float32))

    def server(self, part: slice) -> RealServer:
        """That of a part of the weights, which nobody looks at."""
        return RealServer(np.zeros(part.stop - part.start, np.float32), FixedRate(1.0), False)


class NoiseLearner:
    """Has one gradient only."""

    def __init__(self, gradient: Vector) -> None:
        self._gradient = gradient

    def gradient(self, weights: Vector, version: int) -> Vector:
        """That gradient."""
        return self._gradient


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

    def __init__(self, weights: Vector, rule: UpdateRule, curve: bool = True) -> None:
        """``curve``: whether weights are kept for one."""
        self.weights, self._rule = weights, rule
        self.updates = 0
        self.history = WeightHistory(weights) if curve else None
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
        if self.history is not None:
            self.history.add(self.updates, self.weights)
        self._remember()

    def kept(self) -> Any:
        """The weights that were kept, as JSON values: after how many updates, and base64."""
        kept = [] if self.history is None else self.history.kept
        return [[n, b64encode(weights.tobytes()).decode()] for n, weights in kept]

    def _remember(self) -> None:
        if self._rule.remembers:
            self._before.append(self.weights.copy())


class GradientCoding:
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


def _joined(kept: Sequence[Any]) -> list[tuple[int, Vector]]:
    """The weights whose parts all servers have kept, whole."""
    parts = [{n: np.frombuffer(b64decode(text), np.float32) for n, text in one} for one in kept]
    both = set(parts[0]).intersection(*parts[1:])
    return [(n, np.concatenate([part[n] for part in parts])) for n in sorted(both)]
