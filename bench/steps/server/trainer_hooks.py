"""How a learner computes a gradient, and what a server does with it.

A gradient is a vector as long as the weights. Each server has one contiguous part of the weights, a
shard. `ProblemTrainer` trains a problem for real; the others exchange arrays of a model's size.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.steps.options import StepOptions
from bench.steps.training.codecs import Codec, Feedback
from bench.steps.training.report import (
    MOST_CHECKED,
    Facts,
    Lines,
    compression,
    relative_error,
    report_training,
)
from bench.steps.training.rules import FixedRate, ReceivedGradient, UpdateRule
from bench.steps.training.samples import SharedProblem, WeightHistory
from busbar.errors import RankFailure
from collectives.schedule.dtypes import dtype

Vector = NDArray[Any]
GradientFunction = Callable[[Vector, int], Vector]
"""Computes a learner's next gradient from weights and their version.

The next call may overwrite the result.
"""

#: Bytes of earlier weights that a shard keeps, for rules that use the weights a gradient is of.
_HISTORY_BYTES = 64 << 20
_FEWEST_KEPT, _MOST_KEPT = 16, 1024


class ShardState(ABC):
    """A server's part of the weights. ``weights`` is one array that changes in place."""

    def __init__(self, weights: Vector) -> None:
        self.weights = weights

    @abstractmethod
    def apply(self, gradient: Vector, learner: int, staleness: int) -> None:
        """Take in a learner's gradient of weights that are ``staleness`` updates old.

        The caller may overwrite the gradient afterwards.
        """

    @abstractmethod
    def update(self, count: int) -> None:
        """Update the weights from the ``count`` gradients since the last update."""

    def to_json(self) -> Any:
        """What `Trainer.report` needs of this shard, as a JSON value."""
        return None


class GradientCoding:
    """How gradients are sent: here as they are. Each rank has one of its own."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype

    def encode(self, gradient: Vector, server: int) -> Vector:
        """Encode a server's part of a gradient. The next call may overwrite the result."""
        return gradient

    def decode(self, data: NDArray[np.uint8], server: int) -> Vector:
        """Decode the bytes of a part that was encoded for a server."""
        return data.view(self._dtype)


class Trainer(ABC):
    """Makes what servers and learners need. Each rank makes an equal one from the run's options.

    ``elements``: the number of weights; ``dtype``: their type.
    """

    def __init__(self, elements: int, dtype: np.dtype[Any]) -> None:
        self.elements, self.dtype = elements, dtype

    @abstractmethod
    def gradient_function(self, learner: int) -> GradientFunction:
        """The gradients of a learner. One that joins late has a number that no other has had."""

    @abstractmethod
    def shard(self, part: slice) -> ShardState:
        """The first weights of a shard."""

    def coding(self, places: Sequence[slice]) -> GradientCoding:
        """The coding of a rank. ``places``: the servers' parts of the weights."""
        return GradientCoding(self.dtype)

    def report(
        self, shards: Sequence[Any], moments: Sequence[float], alike: bool
    ) -> tuple[Facts, Lines]:
        """The training's facts for the record, and its printed lines. Called on rank 0.

        ``shards``: what `ShardState.to_json` returned on every server. ``moments``: seconds from
        the first weights until each update. ``alike``: every update was of all learners' gradients,
        as in one process.
        """
        return {}, []


def make_trainer(options: StepOptions, learners: int) -> Trainer:
    """The trainer that the options ask for. Raises Unsupported."""
    shared = options.training.shared(learners, options.seed)
    if shared is None:
        return make_exchange_trainer(options)
    return ProblemTrainer(shared, options.training.codec)


def make_exchange_trainer(options: StepOptions) -> Trainer:
    """A trainer of arrays that are only exchanged, with the size and the coding of the options."""
    if options.training.compress != "none":
        return RandomTrainer(options.workload.elements, options.training.codec, options.seed)
    return OnesTrainer(options.workload.elements, dtype(options.dtype))


class OnesTrainer(Trainer):
    """Arrays of a model's size: every gradient is ones, and an update subtracts their mean.

    So each weight is minus its version, which every learner checks.
    """

    def gradient_function(self, learner: int) -> GradientFunction:
        """See `Trainer`. Raises RankFailure for weights that are older than their version."""
        import ml_dtypes

        finfo: Any = ml_dtypes.finfo
        # Whole numbers up to here are exact.
        most, ones = 2 ** (finfo(self.dtype).nmant + 1), np.ones(self.elements, self.dtype)

        def gradient(weights: Vector, version: int) -> Vector:
            oldest = -max(float(weights[0]), float(weights[-1]))
            if version <= most and oldest < version:
                raise RankFailure(
                    f"learner {learner} was sent weights of version {oldest:g} as {version}"
                )
            return ones

        return gradient

    def shard(self, part: slice) -> ShardState:
        """See `Trainer`."""
        return _MeanShard(np.zeros(part.stop - part.start, self.dtype))


class _MeanShard(ShardState):
    def __init__(self, weights: Vector) -> None:
        super().__init__(weights)
        self._sum, self._first = np.empty_like(weights), True

    def apply(self, gradient: Vector, learner: int, staleness: int) -> None:
        """See `ShardState`."""
        if self._first:
            np.copyto(self._sum, gradient)
        else:
            np.add(self._sum, gradient, out=self._sum)
        self._first = False

    def update(self, count: int) -> None:
        """See `ShardState`."""
        if count > 1:
            np.divide(self._sum, self._sum.dtype.type(count), out=self._sum)
        np.subtract(self.weights, self._sum, out=self.weights)
        self._first = True


class CodecTrainer(Trainer):
    """A trainer whose gradients are float32 and sent in the code of a codec."""

    def __init__(self, elements: int, codec: Codec) -> None:
        super().__init__(elements, np.dtype(np.float32))
        self._codec = codec

    def coding(self, places: Sequence[slice]) -> CodecCoding:
        """See `Trainer`."""
        return CodecCoding(self._codec, [place.stop - place.start for place in places])

    @abstractmethod
    def example(self) -> Vector:
        """A gradient by which the codec is judged."""

    def report(
        self, shards: Sequence[Any], moments: Sequence[float], alike: bool
    ) -> tuple[Facts, Lines]:
        """Cost and error of compressing a gradient, from one example without error feedback."""
        if self._codec.name == "none":
            return {}, []
        gradient = self.example()[:MOST_CHECKED]
        start = time.perf_counter()
        wire = self._codec.encode(gradient)
        encoded = time.perf_counter()
        decoded = self._codec.decode(wire, len(gradient))
        seconds = np.array([encoded - start, time.perf_counter() - encoded]) / len(gradient)
        encode_s, decode_s = (seconds * self.elements).tolist()
        error = relative_error(decoded, gradient)
        return compression(self._codec, self.elements, "gradient", error, encode_s, decode_s)


class ProblemTrainer(CodecTrainer):
    """A problem that is trained for real."""

    def __init__(self, shared: SharedProblem, codec: Codec) -> None:
        super().__init__(shared.problem.shape.size, codec)
        self._shared = shared

    def example(self) -> Vector:
        """The first gradient of the first learner."""
        return self._shared.gradient(self._shared.problem.start(), 0, 0)

    def report(
        self, shards: Sequence[Any], moments: Sequence[float], alike: bool
    ) -> tuple[Facts, Lines]:
        """See `Trainer`: the curve of loss; if ``alike``, the distance from one process's weights.

        Then the cost of compression.
        """
        facts, lines = report_training(
            self._shared,
            _join_shards(shards),
            lambda n: moments[n - 1] if n else 0.0,
            compare=alike,
        )
        coding_facts, coding_lines = super().report(shards, moments, alike)
        return facts | coding_facts, lines + coding_lines

    def gradient_function(self, learner: int) -> GradientFunction:
        """See `Trainer`: every gradient is of the learner's next samples."""
        numbers = count()
        return lambda weights, _: self._shared.gradient(weights, learner, next(numbers))

    def shard(self, part: slice) -> RuleShard:
        """See `Trainer`."""
        return RuleShard(self._shared.problem.start()[part], self._shared.rule())


class RandomTrainer(CodecTrainer):
    """Arrays of a model's size: a learner's gradients are all the same random numbers."""

    def __init__(self, elements: int, codec: Codec, seed: int) -> None:
        super().__init__(elements, codec)
        self._seed = seed

    def example(self) -> Vector:
        """The first learner's gradient."""
        return self.gradient_function(0)(np.empty(0), 0)

    def gradient_function(self, learner: int) -> GradientFunction:
        """See `Trainer`."""
        random = np.random.default_rng((self._seed, learner))
        gradient = random.standard_normal(self.elements, np.float32)
        return lambda *_: gradient

    def shard(self, part: slice) -> RuleShard:
        """See `Trainer`. The weights mean nothing."""
        return RuleShard(np.zeros(part.stop - part.start, np.float32), FixedRate(1.0), False)


class RuleShard(ShardState):
    """A shard that an update rule changes."""

    def __init__(self, weights: Vector, rule: UpdateRule, curve: bool = True) -> None:
        """``curve``: whether weights are kept for the curve of loss."""
        super().__init__(weights)
        self._rule, self._updates = rule, 0
        self.history = WeightHistory(weights) if curve else None
        self._received: list[tuple[int, ReceivedGradient]] = []
        fits = _HISTORY_BYTES // max(1, weights.nbytes)
        self._earlier: deque[Vector] = deque(maxlen=max(_FEWEST_KEPT, min(_MOST_KEPT, fits)))
        self._remember()

    def apply(self, gradient: Vector, learner: int, staleness: int) -> None:
        """See `ShardState`. In place of weights that are no longer kept the oldest are used."""
        read = None
        if self._rule.remembers:
            read = self._earlier[-1 - min(staleness, len(self._earlier) - 1)]
        self._received.append((learner, ReceivedGradient(gradient.copy(), staleness, read)))

    def update(self, count: int) -> None:
        """See `ShardState`. Gradients are added in the order of learners.

        So the same gradients give the same bits, in whatever order they are received.
        """
        self._received.sort(key=lambda entry: entry[0])
        with np.errstate(all="ignore"):  # divergence is seen in the loss
            self._rule(self.weights, [gradient for _, gradient in self._received])
        self._received.clear()
        self._updates += 1
        if self.history is not None:
            self.history.add(self._updates, self.weights)
        self._remember()

    def to_json(self) -> Any:
        """The weights of the history, each with the number of updates before, in base64."""
        history = [] if self.history is None else self.history.entries
        return [[n, b64encode(weights.tobytes()).decode()] for n, weights in history]

    def _remember(self) -> None:
        if self._rule.remembers:
            self._earlier.append(self.weights.copy())


class CodecCoding(GradientCoding):
    """Gradients in the code of a codec, with error feedback for each server's part."""

    def __init__(self, codec: Codec, lengths: Sequence[int]) -> None:
        super().__init__(np.dtype(np.float32))
        self._codec, self._lengths = codec, lengths
        self._feedback = [Feedback(codec, length) for length in lengths]

    def encode(self, gradient: Vector, server: int) -> Vector:
        """See `GradientCoding`."""
        return self._feedback[server].encode(gradient)

    def decode(self, data: NDArray[np.uint8], server: int) -> Vector:
        """See `GradientCoding`."""
        return self._codec.decode(data, self._lengths[server])


def _join_shards(shards: Sequence[Any]) -> list[tuple[int, Vector]]:
    """The whole weights after each number of updates that all shards have kept."""
    parts = [{n: np.frombuffer(b64decode(text), np.float32) for n, text in one} for one in shards]
    common = set(parts[0]).intersection(*parts[1:])
    return [(n, np.concatenate([part[n] for part in parts])) for n in sorted(common)]
