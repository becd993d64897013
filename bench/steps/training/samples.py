"""Real training: each learner's samples, the loss, and the weights one process would get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.steps.training.problem import TrainingProblem
from bench.steps.training.rules import ReceivedGradient, UpdateRule

Vector = NDArray[Any]
# A comparison computes so many gradients at most, which takes some seconds.
_MOST_REPEATED = 20_000


def parts(elements: int, shards: int) -> list[slice]:
    """Divide a vector into so many contiguous parts, whose lengths differ by one at most."""
    edges = [elements * n // shards for n in range(shards + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


@dataclass(frozen=True)
class SharedProblem:
    """A problem that so many learners train. ``rule``: makes the update rule of a shard."""

    problem: TrainingProblem
    rule: Callable[[], UpdateRule]
    learners: int

    def gradient(self, weights: Vector, learner: int, number: int) -> Vector:
        """A learner's n-th gradient, counted from 0, at these weights."""
        problem = self.problem
        return problem.gradient(weights, problem.samples(number * self.learners + learner))

    def alone(self, updates: int, whole: bool) -> Vector:
        """The weights after so many synchronous updates of one process.

        ``whole``: the samples of an update are one batch. Otherwise the gradients of learners are
        computed one after the other and added in this order.
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


class Deviation(NamedTuple):
    """How far weights differ from those of one process after the same updates.

    ``updates``: how many. ``bits``: whether the weights are equal, bit by bit, to those of a
    process that adds the learners' gradients in order. ``part``: the largest difference from that
    process, over its largest weight. ``whole``: the same for a process that uses the whole batch at
    once, so that it adds in another order.
    """

    updates: int
    bits: bool
    part: float
    whole: float

    def lines(self, where: str = "") -> list[str]:
        """The printed lines. ``where``: how the weights of ranks compare."""
        part = "the same bits" if self.bits else f"within {self.part:.1g} of the largest"
        return [
            f"    weights after {self.updates} updates{where}",
            f"      as one process that adds in the order of ranks: {part}",
            f"      as one process with the whole batch at once: within {self.whole:.1g}",
        ]


def compare_with_one_process(
    training: SharedProblem, history: Sequence[tuple[int, Vector]]
) -> Deviation:
    """Compare weights of synchronous training with those of one process after as many updates.

    These are the last weights that are finite and that one process computes within seconds.
    ``history``: numbers of updates, and the weights after them.
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


class LossPoint(NamedTuple):
    """A point of a loss curve: seconds since the start, updates so far, the loss in nats."""

    seconds: float
    updates: int
    loss: float


class WeightHistory:
    """Copies of weights after some updates, whose losses are computed when training is over.

    There are at most ``most`` copies beside the first, with as many updates between any two: when
    there are more, every second one is dropped. ``kept``: numbers of updates, and the weights after
    them.
    """

    def __init__(self, weights: Vector, most: int = 100) -> None:
        self._most, self._every = most, 1
        self.kept: list[tuple[int, Vector]] = [(0, weights.copy())]

    def add(self, updates: int, weights: Vector) -> None:
        """Keep a copy of the weights after so many updates, unless it is too close to the last."""
        if updates % self._every:
            return
        self.kept.append((updates, weights.copy()))
        if len(self.kept) > self._most + 1:
            self._every *= 2
            self.kept = [entry for entry in self.kept if not entry[0] % self._every]


def losses(
    problem: TrainingProblem,
    history: Sequence[tuple[int, Vector]],
    seconds: Callable[[int], float],
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
