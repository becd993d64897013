"""Trainers: how a learner computes a gradient, and how a server applies it.

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
from bench.steps.training.problem import (
    MOST_CHECKED,
    Facts,
    FixedRate,
    Lines,
    ReceivedGradient,
    SharedProblem,
    UpdateRule,
    WeightHistory,
    compression,
    relative_error,
    report_training,
)
from busbar.errors import RankFailure
from collectives.schedule.dtypes import dtype

Vector = NDArray[Any]
GradientFunction = Callable[[Vector, int], Vector]
"""Computes a learner's next gradient from weights and their version.

The next call may overwrite the result.
"""

#: Bytes of earlier weights that a shard keeps, for rules that need a gradient's own weights.
_HISTORY_BYTES = 64 << 20
_FEWEST_KEPT, _MOST_KEPT = 16, 1024


class ShardState(ABC):
    """A server's part of the weights. ``weights`` is one array that changes in place."""

    def __init__(self, weights: Vector) -> None:
        self.weights = weights

    @abstractmethod
    def apply(self, gradient: Vector, learner: int, staleness: int) -> None:
        """Add a learner's gradient, from weights that are ``staleness`` updates old.

        The caller may overwrite the gradient afterwards.
        """

    @abstractmethod
    def update(self, count: int) -> None:
        """Update the weights from the ``count`` gradients since the last update."""

    def to_json(self) -> Any:
        """The data of this shard that `Trainer.report` needs, as a JSON value."""
        return None


class GradientCoding:
    """Encodes and decodes gradients, if there is a codec. Each rank has its own object.

    ``lengths``: of the servers' parts. Each part has its own error feedback.
    """

    def __init__(self, dtype: np.dtype[Any], codec: Codec | None, lengths: Sequence[int]) -> None:
        self._dtype, self._codec, self._lengths = dtype, codec, lengths
        self._feedback = [] if codec is None else [Feedback(codec, length) for length in lengths]

    def encode(self, gradient: Vector, server: int) -> Vector:
        """Compress the part of a gradient that goes to one server, if compression is on.

        ``gradient``: that part. The next call may overwrite the result.
        """
        return gradient if self._codec is None else self._feedback[server].encode(gradient)

    def decode(self, data: NDArray[np.uint8], server: int) -> Vector:
        """Decode the bytes of a part that was encoded for a server."""
        if self._codec is None:
            return data.view(self._dtype)
        return self._codec.decode(data, self._lengths[server])


class Trainer(ABC):
    """Makes the shards of servers and the gradients of learners.

    Each rank makes an equal trainer from the run's options. ``elements``: the number of weights;
    ``dtype``: their type; ``nbytes``: their bytes. ``codec``: encodes gradients, which are then
    float32; None: no encoding.
    """

    def __init__(
        self, elements: int, dtype: np.dtype[Any] | None = None, codec: Codec | None = None
    ) -> None:
        self.elements, self.dtype = elements, dtype or np.dtype(np.float32)
        self.nbytes, self._codec = elements * self.dtype.itemsize, codec

    @abstractmethod
    def gradient_function(self, learner: int) -> GradientFunction:
        """The function that computes a learner's gradients. Numbers of learners are not reused."""

    @abstractmethod
    def shard(self, part: slice) -> ShardState:
        """The state of a server's shard, with its first weights."""

    def coding(self, places: Sequence[slice]) -> GradientCoding:
        """The coding of a rank. ``places``: the servers' parts of the weights."""
        lengths = [place.stop - place.start for place in places]
        return GradientCoding(self.dtype, self._codec, lengths)

    def report(
        self, shards: Sequence[Any], moments: Sequence[float], alike: bool
    ) -> tuple[Facts, Lines]:
        """The training's facts for the record, and its printed lines. Called on rank 0.

        ``shards``: the result of `ShardState.to_json` of each server. ``moments``: seconds from the
        first weights until each update. ``alike``: True if each update used all learners'
        gradients, as in one process. This method reports cost and error of compressing the first
        gradient of learner 0, without error feedback.
        """
        if self._codec is None or self._codec.name == "none":
            return {}, []
        first = self.gradient_function(0)(self.shard(slice(0, self.elements)).weights, 0)
        gradient = first[:MOST_CHECKED]
        start = time.perf_counter()
        wire = self._codec.encode(gradient)
        encoded = time.perf_counter()
        decoded = self._codec.decode(wire, len(gradient))
        seconds = np.array([encoded - start, time.perf_counter() - encoded]) / len(gradient)
        encode_s, decode_s = (seconds * self.elements).tolist()
        error = relative_error(decoded, gradient)
        return compression(self._codec, self.elements, "gradient", error, encode_s, decode_s)


def make_trainer(options: StepOptions, learners: int) -> Trainer:
    """The trainer that the options request. Raises Unsupported for an unknown problem or rule."""
    shared = options.shared_problem(learners)
    if shared is None:
        return make_exchange_trainer(options)
    return ProblemTrainer(shared, options.codec)


def make_exchange_trainer(options: StepOptions) -> Trainer:
    """A trainer of arrays that are only exchanged, with size and compression as in the options."""
    if options.compress != "none":
        return RandomTrainer(options.workload.elements, options.codec, options.seed)
    return OnesTrainer(options.workload.elements, dtype(options.dtype))


class OnesTrainer(Trainer):
    """Arrays of a model's size: all gradients are ones, and an update subtracts their mean.

    So each weight equals minus its version, which every learner checks.
    """

    def gradient_function(self, learner: int) -> GradientFunction:
        """A function that returns ones, and checks the weights, see `Trainer.gradient_function`.

        It raises RankFailure for weights that are older than their version.
        """
        import ml_dtypes

        finfo: Any = ml_dtypes.finfo
        # Whole numbers up to ``most`` are exact in this type.
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
        """The state of one server's part of the weights, see `Trainer.shard`."""
        return _MeanShard(np.zeros(part.stop - part.start, self.dtype))


class _MeanShard(ShardState):
    def __init__(self, weights: Vector) -> None:
        super().__init__(weights)
        self._sum, self._first = np.empty_like(weights), True

    def apply(self, gradient: Vector, learner: int, staleness: int) -> None:
        if self._first:
            np.copyto(self._sum, gradient)
        else:
            np.add(self._sum, gradient, out=self._sum)
        self._first = False

    def update(self, count: int) -> None:
        if count > 1:
            np.divide(self._sum, self._sum.dtype.type(count), out=self._sum)
        np.subtract(self.weights, self._sum, out=self.weights)
        self._first = True


class ProblemTrainer(Trainer):
    """A problem that is trained for real."""

    def __init__(self, shared: SharedProblem, codec: Codec) -> None:
        super().__init__(shared.problem.shape.size, codec=codec)
        self._shared = shared

    def report(
        self, shards: Sequence[Any], moments: Sequence[float], alike: bool
    ) -> tuple[Facts, Lines]:
        """The loss curve and the cost of compression, see `Trainer.report`.

        With ``alike`` also the distance from the weights of training in one process.
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
        """The function that computes a learner's gradients, each from its next samples."""
        numbers = count()
        return lambda weights, _: self._shared.gradient(weights, learner, next(numbers))

    def shard(self, part: slice) -> RuleShard:
        """The state of one server's part of the weights, see `Trainer.shard`."""
        return RuleShard(self._shared.problem.start()[part], self._shared.rule())


class RandomTrainer(Trainer):
    """Arrays of a model's size: all gradients of a learner are the same random numbers."""

    def __init__(self, elements: int, codec: Codec, seed: int) -> None:
        super().__init__(elements, codec=codec)
        self._seed = seed

    def gradient_function(self, learner: int) -> GradientFunction:
        """A function that returns the same random gradient whenever it is called."""
        random = np.random.default_rng((self._seed, learner))
        gradient = random.standard_normal(self.elements, np.float32)
        return lambda *_: gradient

    def shard(self, part: slice) -> RuleShard:
        """The state of one server's weights, whose values have no meaning."""
        return RuleShard(np.zeros(part.stop - part.start, np.float32), FixedRate(1.0), False)


class RuleShard(ShardState):
    """A server's part of the weights, changed by an update rule such as gradient descent."""

    def __init__(self, weights: Vector, rule: UpdateRule, curve: bool = True) -> None:
        """``curve``: True if weights are kept for the loss curve."""
        super().__init__(weights)
        self._rule, self._updates = rule, 0
        self.history = WeightHistory(weights) if curve else None
        self._received: list[tuple[int, ReceivedGradient]] = []
        fits = _HISTORY_BYTES // max(1, weights.nbytes)
        self._earlier: deque[Vector] = deque(maxlen=max(_FEWEST_KEPT, min(_MOST_KEPT, fits)))
        self._remember()

    def apply(self, gradient: Vector, learner: int, staleness: int) -> None:
        """Keep a learner's gradient for the next update of the weights, see `ShardState.apply`.

        If the weights that it was computed from are no longer kept, the oldest are used.
        """
        read = None
        if self._rule.remembers:
            read = self._earlier[-1 - min(staleness, len(self._earlier) - 1)]
        self._received.append((learner, ReceivedGradient(gradient.copy(), staleness, read)))

    def update(self, count: int) -> None:
        """Update the weights from the received gradients, added in the order of learners.

        So the result has the same bits, whatever the order in which gradients are received. See
        `ShardState.update`.
        """
        self._received.sort(key=lambda entry: entry[0])
        with np.errstate(all="ignore"):  # the loss shows whether training diverges
            self._rule(self.weights, [gradient for _, gradient in self._received])
        self._received.clear()
        self._updates += 1
        if self.history is not None:
            self.history.add(self._updates, self.weights)
        self._remember()

    def to_json(self) -> Any:
        """The kept weights: pairs of a number of updates and the weights after them in base64."""
        history = [] if self.history is None else self.history.entries
        return [[n, b64encode(weights.tobytes()).decode()] for n, weights in history]

    def _remember(self) -> None:
        if self._rule.remembers:
            self._earlier.append(self.weights.copy())


def _join_shards(shards: Sequence[Any]) -> list[tuple[int, Vector]]:
    """The whole weights after each number of updates that all shards have kept."""
    parts = [{n: np.frombuffer(b64decode(text), np.float32) for n, text in one} for one in shards]
    common = set(parts[0]).intersection(*parts[1:])
    return [(n, np.concatenate([part[n] for part in parts])) for n in sorted(common)]
