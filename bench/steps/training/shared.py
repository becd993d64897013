"""Real training: whose samples and weights are whose, the loss, and what one process would get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.steps.training.problem import TrainingProblem
from bench.steps.training.rates import Arrived, UpdateRule

Vector = NDArray[Any]
#: A comparison computes so many gradients again at most, which takes some seconds.
_MOST_REPEATED = 20_000


def parts(elements: int, shards: int) -> list[slice]:
    """The contiguous parts of a vector in so many shards, as equal as can be."""
    edges = [elements * n // shards for n in range(shards + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


@dataclass(frozen=True)
class SharedProblem:
    """A problem that so many learners train; ``rule`` makes a rule for each shard."""

    problem: TrainingProblem
    rule: Callable[[], UpdateRule]
    learners: int

    def gradient(self, weights: Vector, learner: int, number: int) -> Vector:
        """A learner's gradient of that number, from 0, at these weights."""
        problem = self.problem
        return problem.gradient(weights, problem.samples(number * self.learners + learner))

    def alone(self, updates: int, whole: bool) -> Vector:
        """The weights after so many synchronous updates of one process.

        ``whole``: it takes each update's samples as one batch; else learner by learner, and adds
        the gradients in that order.
        """
        weights, rule, problem = self.problem.start(), self.rule(), self.problem
        for update in range(updates):
            if whole:
                samples = problem.samples(update * self.learners, self.learners)
                gradients = [problem.gradient(weights, samples)]
            else:
                gradients = [self.gradient(weights, one, update) for one in range(self.learners)]
            rule(weights, [Arrived(gradient, 0, weights) for gradient in gradients])
        return weights


class Apart(NamedTuple):
    """The distance of weights from those of one process that made the same updates alone.

    ``updates``: how many. ``bits``: whether they are equal to the bit to those of a process that
    adds the learners' gradients in order. ``part`` and ``whole``: the largest difference over the
    largest weight, from that process, and from one that takes the whole batch at once, whose
    products add in another order.
    """

    updates: int
    bits: bool
    part: float
    whole: float

    def lines(self, where: str = "") -> list[str]:
        """In words. ``where``: what is known of the weights among ranks."""
        part = "the same bits" if self.bits else f"within {self.part:.1g} of the largest"
        return [
            f"    weights after {self.updates} updates{where}",
            f"      as one process that adds in the order of ranks: {part}",
            f"      as one process with the whole batch at once: within {self.whole:.1g}",
        ]


def apart(training: SharedProblem, kept: Sequence[tuple[int, Vector]]) -> Apart:
    """Compare the last of synchronous training's weights with one process's after as many updates.

    These are the last weights that are numbers and that one process reaches in some seconds: of
    long training, or of training that diverged, earlier ones.
    """
    updates, weights = [
        (count, weights)
        for count, weights in kept
        if count * training.learners <= _MOST_REPEATED and np.isfinite(weights).all()
    ][-1]
    part, whole = training.alone(updates, False), training.alone(updates, True)
    largest = float(np.abs(part).max())
    off = [float(np.abs(weights - alone).max()) / largest for alone in (part, whole)]
    return Apart(updates, np.array_equal(weights, part), *off)


class LossPoint(NamedTuple):
    """A point of a curve of loss: seconds from the start, updates so far, the loss in nats."""

    seconds: float
    updates: int
    loss: float


class WeightHistory:
    """Copies of the weights over the updates, whose losses are computed when training is over.

    At most ``most`` of them beside the first, at equal distances: when there are more, every second
    one goes. ``kept``: after how many updates, and the weights.
    """

    def __init__(self, weights: Vector, most: int = 100) -> None:
        self._most, self._every = most, 1
        self.kept: list[tuple[int, Vector]] = [(0, weights.copy())]

    def add(self, updates: int, weights: Vector) -> None:
        """Keep a copy of the weights after so many updates, if it is their turn."""
        if updates % self._every:
            return
        self.kept.append((updates, weights.copy()))
        if len(self.kept) > self._most + 1:
            self._every *= 2
            self.kept = [one for one in self.kept if not one[0] % self._every]


def losses(
    problem: TrainingProblem,
    kept: Sequence[tuple[int, Vector]],
    seconds: Callable[[int], float],
) -> list[LossPoint]:
    """The curve of what was kept; ``seconds`` says when an update was made, 0 the start.

    It ends where the loss is no number any more, or has overflowed.
    """
    points = []
    for updates, weights in kept:
        loss = problem.loss(weights)
        if not np.isfinite(loss):
            break
        points.append(LossPoint(seconds(updates), updates, loss))
    return points
