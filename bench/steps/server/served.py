"""Training with a parameter server: the hooks that handle real gradients."""

from __future__ import annotations

import time
from abc import abstractmethod
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.steps.options import StepOptions
from bench.steps.server.hooks import Coding, Learner, PlainTraining, Server, Training, Vector
from bench.steps.training.codecs import Codec, Feedback
from bench.steps.training.rates import Arrived, FixedRate, UpdateRule
from bench.steps.training.shared import SharedProblem, WeightHistory, apart, losses
from bench.steps.training.telling import (
    MOST_CHECKED,
    Facts,
    Lines,
    compression,
    curve_facts,
    curve_lines,
    relative_error,
)
from collectives.schedule.dtypes import dtype

#: Bytes of earlier weights that a server keeps, for rules that compare with the weights read.
_REMEMBERED = 64 << 20
_LEAST, _MOST = 16, 1024


def training(options: StepOptions, learners: int) -> Training:
    """The training that the options ask for: a problem, or arrays of the model's size.

    It is the same on every rank, and in every process that joins. Raises Unsupported.
    """
    asked = options.training
    shared = asked.shared(learners, options.seed)
    return exchanged(options) if shared is None else ProblemTraining(shared, asked.codec)


def exchanged(options: StepOptions) -> Training:
    """Arrays of the same size that are only exchanged, in the same code."""
    asked = options.training
    if asked.compress != "none":
        return NoiseTraining(options.workload.elements, asked.codec, options.seed)
    return PlainTraining(options.workload.elements, dtype(options.dtype))


class CodedTraining(Training):
    """A training whose gradients are float32 and coded."""

    def __init__(self, elements: int, codec: Codec) -> None:
        super().__init__(elements, np.dtype(np.float32))
        self._codec = codec

    def coding(self, places: Sequence[slice]) -> GradientCoding:
        """See `Training`."""
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
        gradient = self.example()[:MOST_CHECKED]
        start = time.perf_counter()
        wire = self._codec.encode(gradient)
        encoded = time.perf_counter()
        back = self._codec.decode(wire, len(gradient))
        each = np.array([encoded - start, time.perf_counter() - encoded]) / len(gradient)
        coding = (each * self.elements).tolist()
        off = relative_error(back, gradient)
        return compression(self._codec, self.elements, "gradient", off, *coding)


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
        """See `Training`: the curve of loss, and the distance of synchronous weights (`apart`)."""
        problem, joined = self._shared.problem, _joined(kept)
        points = losses(problem, joined, lambda n: moments[n - 1] if n else 0.0)
        facts, lines = curve_facts(points), curve_lines(points)
        if alike:
            found = apart(self._shared, joined)
            facts["apart"] = found._asdict()
            lines += found.lines()
        more, last = super().told(kept, moments, alike)
        return facts | more, lines + last

    def learner(self, number: int) -> Learner:
        """See `Training`: every gradient is of the next samples of the learner's own."""
        numbers = count()
        return lambda weights, _: self._shared.gradient(weights, number, next(numbers))

    def server(self, part: slice) -> RealServer:
        """See `Training`."""
        return RealServer(self._shared.problem.start()[part], self._shared.rule())


class NoiseTraining(CodedTraining):
    """Arrays of a model's size: a learner's one gradient is random, and means nothing."""

    def __init__(self, elements: int, codec: Codec, seed: int) -> None:
        super().__init__(elements, codec)
        self._seed = seed

    def example(self) -> Vector:
        """The first learner's."""
        return self.learner(0)(np.empty(0), 0)

    def learner(self, number: int) -> Learner:
        """See `Training`."""
        random = np.random.default_rng((self._seed, number))
        gradient = random.standard_normal(self.elements, np.float32)
        return lambda *_: gradient

    def server(self, part: slice) -> RealServer:
        """See `Training`; nobody looks at its weights."""
        return RealServer(np.zeros(part.stop - part.start, np.float32), FixedRate(1.0), False)


class RealServer(Server):
    """A part of the weights, its rule, and what is kept for the curve of loss."""

    def __init__(self, weights: Vector, rule: UpdateRule, curve: bool = True) -> None:
        """``curve``: whether weights are kept for one."""
        super().__init__(weights)
        self._rule, self._updates = rule, 0
        self.history = WeightHistory(weights) if curve else None
        self._arrived: list[tuple[int, Arrived]] = []
        fits = _REMEMBERED // max(1, weights.nbytes)
        self._before: deque[Vector] = deque(maxlen=max(_LEAST, min(_MOST, fits)))
        self._remember()

    def apply(self, gradient: Vector, learner: int, staleness: int) -> None:
        """See `Server`. For weights that are no longer kept the oldest are taken."""
        read = None
        if self._rule.remembers:
            read = self._before[-1 - min(staleness, len(self._before) - 1)]
        self._arrived.append((learner, Arrived(gradient.copy(), staleness, read)))

    def update(self, count: int) -> None:
        """See `Server`. Gradients are added by learner: so the same ones give the same bits."""
        self._arrived.sort(key=lambda one: one[0])
        with np.errstate(all="ignore"):  # what diverges is seen in the loss
            self._rule(self.weights, [arrived for _, arrived in self._arrived])
        self._arrived.clear()
        self._updates += 1
        if self.history is not None:
            self.history.add(self._updates, self.weights)
        self._remember()

    def kept(self) -> Any:
        """The weights that were kept, as JSON values: after how many updates, and base64."""
        kept = [] if self.history is None else self.history.kept
        return [[n, b64encode(weights.tobytes()).decode()] for n, weights in kept]

    def _remember(self) -> None:
        if self._rule.remembers:
            self._before.append(self.weights.copy())


class GradientCoding(Coding):
    """A codec with error feedback for each server's part."""

    def __init__(self, codec: Codec, lengths: Sequence[int]) -> None:
        super().__init__(np.dtype(np.float32))
        self._codec, self._lengths = codec, lengths
        self._feedback = [Feedback(codec, length) for length in lengths]

    def encode(self, gradient: Vector, server: int) -> Vector:
        """See `Coding`."""
        return self._feedback[server].encode(gradient)

    def decode(self, data: NDArray[np.uint8], server: int) -> Vector:
        """See `Coding`."""
        return self._codec.decode(data, self._lengths[server])


def _joined(kept: Sequence[Any]) -> list[tuple[int, Vector]]:
    """The whole weights after each update of which all servers have kept their parts."""
    parts = [{n: np.frombuffer(b64decode(text), np.float32) for n, text in one} for one in kept]
    both = set(parts[0]).intersection(*parts[1:])
    return [(n, np.concatenate([part[n] for part in parts])) for n in sorted(both)]
