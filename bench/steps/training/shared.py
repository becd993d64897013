"""One training for real: whose gradient is of which samples, its loss, and what one process gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.steps.training.problem import TrainingProblem
from bench.steps.training.rates import Arrived, UpdateRule

Vector = NDArray[Any]


@dataclass(frozen=True)
class SharedProblem:
    """A problem that so many learners train; ``rule`` makes a rule for each shard of the weights."""

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
    """How far weights are from those of one process that did the same updates alone.

    ``bits``: they are equal to the bit to those of one that adds the learners' gradients in order.
    ``part`` and ``whole``: the largest difference over the largest weight, from that one, and from
    one that takes the whole batch at once, whose products add in another order.
    """

    bits: bool
    part: float
    whole: float


def apart(training: SharedProblem, weights: Vector, updates: int) -> Apart:
    """Compare weights after so many synchronous updates with one process's."""
    part, whole = training.alone(updates, False), training.alone(updates, True)
    largest = float(np.abs(part).max())
    off = [float(np.abs(weights - alone).max()) / largest for alone in (part, whole)]
    return Apart(np.array_equal(weights, part), *off)


class LossPoint(NamedTuple):
    """A point of a curve of loss: seconds from the start, updates so far, the loss in nats."""

    seconds: float
    updates: int
    loss: float


class LossCurve:
    """Weights as they were now and then, whose losses are worked out when training is over.

    At most ``most`` of them, evenly over the updates: when there are more, every second one goes.
    """

    def __init__(self, most: int = 200) -> None:
        self._most, self._every = most, 1
        self._kept: list[tuple[float, int, Vector]] = []

    def add(self, seconds: float, updates: int, weights: Vector) -> None:
        """Keep a copy of the weights after so many updates, if it is their turn."""
        if updates % self._every:
            return
        self._kept.append((seconds, updates, weights.copy()))
        if len(self._kept) > self._most:
            self._every *= 2
            self._kept = [one for one in self._kept if not one[1] % self._every]

    def points(self, problem: TrainingProblem) -> list[LossPoint]:
        """The curve; it ends where the loss is no number any more, or has overflowed."""
        points = []
        for seconds, updates, weights in self._kept:
            loss = problem.loss(weights)
            if not np.isfinite(loss):
                break
            points.append(LossPoint(seconds, updates, loss))
        return points
