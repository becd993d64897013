"""Real training: problems, update rules, which learner uses which samples, and the report.

A problem is a classifier of dense layers with generated data, a loss and its gradient: softmax
regression, whose loss is convex, or a network with one hidden layer. Every rank generates the same
data from the seed, so data are not sent. An update rule changes one shard and keeps its own state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.steps.training.codecs import Codec, make_by_name
from busbar.errors import Unsupported
from busbar.units import format_seconds

Vector = NDArray[Any]
_TINY = 1e-8


@dataclass(frozen=True)
class ReceivedGradient:
    """A gradient that a server has received.

    ``staleness``: the number of updates since the weights from which it was computed. ``read``:
    these older weights, if the rule needs them (`UpdateRule.remembers`).
    """

    gradient: Vector
    staleness: int = 0
    read: Vector | None = None


class UpdateRule(ABC):
    """A rule that changes the weights of one shard by gradients, such as gradient descent."""

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
        """Update the weights in place, see `UpdateRule.__call__`."""
        weights -= weights.dtype.type(self._rate) * mean(gradients)


class StalenessRate(UpdateRule):
    """The learning rate is α = α₀/⟨σ⟩; ⟨σ⟩ is the mean staleness so far, but at least 1.

    Gupta, Zhang, Wang 2016 (Model accuracy and runtime tradeoff in distributed deep learning). The
    mean is over all gradients that this shard has received.
    """

    def __init__(self, rate: float) -> None:
        self._rate, self._sum, self._count = rate, 0, 0

    def __call__(self, weights: Vector, gradients: Sequence[ReceivedGradient]) -> None:
        """Update the weights in place, see `UpdateRule.__call__`."""
        self._sum += sum(gradient.staleness for gradient in gradients)
        self._count += len(gradients)
        rate = self._rate / max(1.0, self._sum / self._count)
        weights -= weights.dtype.type(rate) * mean(gradients)


class DistanceRate(UpdateRule):
    """Each gradient's learning rate is η_j = min(C/‖w_j − w_τ(j)‖², η_max).

    Dutta, Joshi, Ghosh, Dube, Nagpurkar 2018 (Slow and stale gradients can win the race), for one
    gradient per update. Several gradients are each scaled by their rates before the mean. The
    distance is that of this shard's weights.
    """

    remembers = True

    def __init__(self, rate: float, *, c: float = 1.0) -> None:
        if not c > 0:
            raise Unsupported(f"rule distance: c must be above 0, not {c:g}")
        self._most, self._c = rate, c

    def __call__(self, weights: Vector, gradients: Sequence[ReceivedGradient]) -> None:
        """Update the weights in place, see `UpdateRule.__call__`."""
        rates = [self._rate(weights, received) for received in gradients]
        if len(set(rates)) == 1:  # so the bits are those of plain descent
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
        """Update the weights in place, see `UpdateRule.__call__`."""
        gradient = mean(gradients)
        if self._squares is None:
            self._squares = np.zeros_like(weights)
        self._squares += gradient**2
        weights -= weights.dtype.type(self._rate) * gradient / (np.sqrt(self._squares) + _TINY)


def mean(gradients: Sequence[ReceivedGradient]) -> Vector:
    """The mean of gradients. They are added in this order, which determines the last bits."""
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
    """A function that makes a rule by which gradients change a shard of the weights.

    ``text``: ``fixed``, ``staleness``, ``distance:c=0.5`` or ``adagrad``. ``rate``: the learning
    rate: α of ``fixed`` and ``adagrad``, α₀ of ``staleness``, η_max of ``distance``. Raises
    Unsupported for an unknown name or a rate of 0 or less.
    """
    if not 0 < rate < float("inf"):
        raise Unsupported(f"--rate {rate:g}: a rate is a number above 0")
    make = partial(
        make_by_name, "rule", text, {name: partial(kind, rate) for name, kind in RULES.items()}
    )
    make()
    return make


_CLASSES = 10
# The factor of the teacher's weights: large, so that most labels are clear. Labels are drawn, so
# that no weights have a loss of 0.
_TEACHER_SCALE = 4.0
# The most numbers of an array, so that a problem needs at most some hundred megabytes.
_MOST = 1 << 24


@dataclass(frozen=True)
class ProblemShape:
    """The size of a problem.

    ``widths``: features, units of the hidden layer if there is one, classes. ``batch``: samples of
    one gradient. Raises Unsupported for sizes below 1 or too large.
    """

    name: str
    widths: tuple[int, ...]
    samples: int
    batch: int

    def __post_init__(self) -> None:
        for size in (*self.widths, self.samples, self.batch):
            if size < 1:
                raise Unsupported(f"problem {self.name}: a size is {size}; the least is 1")
        if self.batch > self.samples:
            raise Unsupported(
                f"problem {self.name}: a batch of {self.batch} from {self.samples} samples;"
                f" at most {self.samples}"
            )
        arrays = ((self.samples, max(self.widths)), *pairwise(self.widths))
        most = max(a * b for a, b in arrays)
        if most > _MOST:
            raise Unsupported(
                f"problem {self.name}: an array of {most} numbers; at most {_MOST}: take fewer"
                " samples, features or units"
            )

    @property
    def tensors(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The parameters by name and shape, in the order of a backward pass: the last layer first.

        Vectors of weights and of gradients have this order.
        """
        layers = list(enumerate(pairwise(self.widths), 1))
        return tuple(
            pair
            for n, (above, below) in reversed(layers)
            for pair in ((f"bias{n}", (below,)), (f"weight{n}", (above, below)))
        )

    @property
    def size(self) -> int:
        """The number of elements of the vector that holds all parameters."""
        return sum(prod(shape) for _, shape in self.tensors)


def softmax(batch: int, *, features: int = 32, samples: int = 4096) -> ProblemShape:
    """Softmax regression. Its loss is convex: only noise and staleness keep it above the least."""
    return ProblemShape("softmax", (features, _CLASSES), samples, batch)


def network(
    batch: int, *, hidden: int = 64, features: int = 32, samples: int = 4096
) -> ProblemShape:
    """A network with one hidden layer, whose activation is tanh."""
    return ProblemShape("network", (features, hidden, _CLASSES), samples, batch)


PROBLEMS = {shape.__name__: shape for shape in (softmax, network)}


def shape(text: str, batch: int) -> ProblemShape:
    """The shape that ``network`` or ``network:hidden=128:samples=4096`` names.

    ``batch``: samples of one gradient. Raises Unsupported for an unknown name or parameter, and as
    `ProblemShape` does.
    """
    return make_by_name(
        "problem", text, {name: partial(make, batch) for name, make in PROBLEMS.items()}
    )


@dataclass(frozen=True)
class TrainingProblem:
    """A classifier and its data.

    ``inputs``: samples x features, float32. ``labels``: a class for each sample.
    """

    shape: ProblemShape
    inputs: Vector
    labels: NDArray[np.int64]
    seed: int

    @staticmethod
    def of(shape: ProblemShape, seed: int) -> TrainingProblem:
        """The problem of a shape and a seed.

        Inputs are standard normal. Labels are drawn from the probabilities that a random classifier
        of the same shape, the teacher, assigns to the classes.
        """
        random = np.random.default_rng((seed, 0))
        inputs = random.standard_normal((shape.samples, shape.widths[0])).astype(np.float32)
        teacher = _weights(shape, np.random.default_rng((seed, 1))) * _TEACHER_SCALE
        logs = _forward(_layers(shape, teacher), inputs)[-1]
        labels = np.argmax(logs + random.gumbel(size=logs.shape), axis=1)
        return TrainingProblem(shape, inputs, labels, seed)

    def start(self) -> Vector:
        """The first weights, float32, the same on every rank."""
        return _weights(self.shape, np.random.default_rng((self.seed, 2))).astype(np.float32)

    def samples(self, first: int, count: int = 1) -> NDArray[np.int64]:
        """The samples of ``count`` batches from batch ``first`` on, cyclically.

        The data are independent draws, so shuffling them would change nothing. Learner i of P uses
        batch n·P + i for its n-th gradient: P learners together use the samples of one process with
        P times the batch.
        """
        batch, samples = self.shape.batch, self.shape.samples
        return np.arange(first * batch, (first + count) * batch) % samples

    def loss(self, weights: Vector) -> float:
        """Mean cross-entropy over all samples, in nats; inf or nan if weights have diverged."""
        with np.errstate(all="ignore"):
            logs = _forward(_layers(self.shape, weights), self.inputs)[-1]
            own = logs[np.arange(len(self.labels)), self.labels]
            return float(-np.mean(own, dtype=np.float64))

    def gradient(self, weights: Vector, samples: NDArray[np.int64]) -> Vector:
        """The gradient of the mean cross-entropy over some samples, in the weights' type."""
        with np.errstate(all="ignore"):
            layers = _layers(self.shape, weights)
            *below, logs = _forward(layers, self.inputs[samples])
            delta = np.exp(logs)
            delta[np.arange(len(samples)), self.labels[samples]] -= 1
            delta /= len(samples)
            parts: list[Vector] = []
            for n in range(len(layers) - 1, -1, -1):
                parts += [delta.sum(axis=0), (below[n].T @ delta).ravel()]
                if n:
                    delta = (delta @ layers[n][0].T) * (1 - below[n] ** 2)
            return np.concatenate(parts)


def _weights(shape: ProblemShape, random: np.random.Generator) -> Vector:
    """Random weights, uniform in ±sqrt(6/(in + out)) (Glorot, Bengio 2010); biases are 0."""
    parts = []
    for _, sizes in shape.tensors:
        bound = np.sqrt(6 / sum(sizes)) if len(sizes) == 2 else 0.0
        parts.append(random.uniform(-bound, bound, prod(sizes)))
    return np.concatenate(parts)


def _layers(shape: ProblemShape, weights: Vector) -> list[tuple[Vector, Vector]]:
    """Each layer's matrix and bias, the first layer first, as views of the vector."""
    views, at = [], 0
    for _, sizes in shape.tensors:
        views.append(weights[at : at + prod(sizes)].reshape(sizes))
        at += prod(sizes)
    return list(zip(views[1::2], views[::2], strict=True))[::-1]


def _forward(layers: list[tuple[Vector, Vector]], inputs: Vector) -> list[Vector]:
    """The input of every layer, then the logarithms of the classes' probabilities."""
    values = [inputs.astype(layers[0][0].dtype, copy=False)]
    for n, (matrix, bias) in enumerate(layers, 1):
        sums = values[-1] @ matrix + bias
        values.append(np.tanh(sums) if n < len(layers) else _log_softmax(sums))
    return values


def _log_softmax(sums: Vector) -> Vector:
    shifted = sums - sums.max(axis=1, keepdims=True)
    logs: Vector = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logs


def parts(elements: int, shards: int) -> list[slice]:
    """Divide a vector into ``shards`` contiguous parts, whose lengths differ by one at most."""
    edges = [elements * n // shards for n in range(shards + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


@dataclass(frozen=True)
class SharedProblem:
    """A problem that ``learners`` learners train. ``rule``: makes the rule that changes a shard."""

    problem: TrainingProblem
    rule: Callable[[], UpdateRule]
    learners: int

    def gradient(self, weights: Vector, learner: int, number: int) -> Vector:
        """A learner's n-th gradient, counted from 0, at these weights."""
        problem = self.problem
        return problem.gradient(weights, problem.samples(number * self.learners + learner))

    def alone(self, updates: int, whole: bool) -> Vector:
        """The weights after ``updates`` synchronous updates in one process.

        ``whole``: True if all samples of an update are one batch. Otherwise the learners' gradients
        are computed one after the other and added in this order.
        """
        weights, rule, problem = self.problem.start(), self.rule(), self.problem
        for update in range(updates):
            if whole:
                samples = problem.samples(update * self.learners, self.learners)
                gradients = [problem.gradient(weights, samples)]
            else:
                gradients = [self.gradient(weights, n, update) for n in range(self.learners)]
            rule(weights, [ReceivedGradient(gradient, 0, weights) for gradient in gradients])
        return weights


History = Sequence[tuple[int, Vector]]
"""Numbers of updates, and the weights after them."""


class WeightHistory:
    """Copies of the weights after some updates; their losses are computed after the training.

    The same number of updates is between any two copies. If there are more than ``most`` and the
    first one, every second copy is dropped.
    """

    def __init__(self, weights: Vector, most: int = 100) -> None:
        self._most, self._every = most, 1
        self.entries: list[tuple[int, Vector]] = [(0, weights.copy())]

    def add(self, updates: int, weights: Vector) -> None:
        """Keep a copy of the weights after ``updates`` updates, if one is due."""
        if updates % self._every:
            return
        self.entries.append((updates, weights.copy()))
        if len(self.entries) > self._most + 1:
            self._every *= 2
            self.entries = [entry for entry in self.entries if not entry[0] % self._every]


#: The most elements from which the error of a vector is estimated, to save time.
MOST_CHECKED = 1 << 20
Facts = dict[str, Any]
Lines = list[str]
# The most gradients that a comparison computes, which takes some seconds.
_MOST_REPEATED = 20_000


class LossPoint(NamedTuple):
    """A point of a loss curve: seconds since the start, updates so far, the loss in nats."""

    seconds: float
    updates: int
    loss: float


def losses(
    problem: TrainingProblem, history: History, seconds: Callable[[int], float]
) -> list[LossPoint]:
    """The loss curve of a history; it ends before the first loss that is not finite.

    ``seconds``: when an update was made; 0 is the start.
    """
    points = []
    for updates, weights in history:
        loss = problem.loss(weights)
        if not np.isfinite(loss):
            break
        points.append(LossPoint(seconds(updates), updates, loss))
    return points


class Deviation(NamedTuple):
    """How far weights differ from those of one process after the same updates.

    ``updates``: their number. ``bits``: True if the weights have the same bits as those of a
    process that adds the learners' gradients in order. ``part``: the largest difference from that
    process, divided by its largest weight. ``whole``: the same for a process that uses the whole
    batch at once, and so adds in another order.
    """

    updates: int
    bits: bool
    part: float
    whole: float

    def lines(self, of: int, where: str = "") -> list[str]:
        """The printed lines. ``of``: all updates; ``where``: how the weights of ranks compare."""
        part = "the same bits" if self.bits else f"within {self.part:.1g} of the largest"
        fewer = ", as many as one process repeats in seconds" if self.updates < of else ""
        return [
            f"    weights after {self.updates} updates{fewer}{where}",
            f"      as one process that adds in the order of ranks: {part}",
            f"      as one process with the whole batch at once: within {self.whole:.1g}",
        ]


def compare_with_one_process(training: SharedProblem, history: History) -> Deviation:
    """Compare weights of synchronous training with those of one process after as many updates.

    The last weights are compared that are finite and that one process computes within seconds.
    """
    updates, weights = [
        (count, weights)
        for count, weights in history
        if count * training.learners <= _MOST_REPEATED and np.isfinite(weights).all()
    ][-1]
    part, whole = training.alone(updates, False), training.alone(updates, True)
    largest = float(np.abs(part).max())
    differences = [float(np.abs(weights - alone).max()) / largest for alone in (part, whole)]
    return Deviation(updates, np.array_equal(weights, part), *differences)


def report_training(
    training: SharedProblem,
    history: History,
    seconds: Callable[[int], float],
    *,
    compare: bool,
    where: str = "",
) -> tuple[Facts, Lines]:
    """The loss curve, and with ``compare`` the deviation from one process.

    ``seconds``: see `losses`. ``where``: how the weights of ranks compare.
    """
    points = losses(training.problem, history, seconds)
    facts: Facts = {}
    lines = ["    loss: no number from the start on; take a lower --rate"]
    if points:
        columns = map(list, zip(*points, strict=True))
        facts["curve"] = dict(zip(LossPoint._fields, columns, strict=True))
        first, last, best = points[0], points[-1], min(point.loss for point in points)
        line = (
            f"    loss: {first.loss:.4g} at the start, {last.loss:.4g} after {last.updates} updates"
            f" in {format_seconds(last.seconds)}"
        )
        lines = [line + (f", {best:.4g} at best" if best < 0.99 * last.loss else "")]
    if compare:
        deviation = compare_with_one_process(training, history)
        facts["apart"] = deviation._asdict()
        lines += deviation.lines(history[-1][0], where)
    return facts, lines


def compression(
    codec: Codec, elements: int, what: str, error: float, encode_s: float, decode_s: float
) -> tuple[Facts, Lines]:
    """Facts and printed lines on the costs and the error of compressing ``elements`` elements.

    ``what``: ``sum`` or ``gradient``: the vector that has this relative ``error``.
    """
    bits = 8 * codec.nbytes(elements) / elements
    facts = {
        "bits_per_element": bits,
        "encode_s": encode_s,
        "decode_s": decode_s,
        f"{what}_error": error if np.isfinite(error) else None,
    }
    times = f"encoding {format_seconds(encode_s)}"
    if decode_s:
        times += f", decoding {format_seconds(decode_s)}"
    size = f"{codec.name}: {bits:.3g} bits an element"
    return facts, [f"    {size}; a {what} is off by {error:.2g} of its length;", f"      {times}"]


def relative_error(vector: Vector, exact: Vector) -> float:
    """‖vector − exact‖/‖exact‖; 0 for zeros, inf if an element of the vector is not finite."""
    length = float(np.linalg.norm(exact))
    error = float(np.linalg.norm(vector - exact))
    return (error / length if length else 0.0) if np.isfinite(error) else float("inf")
