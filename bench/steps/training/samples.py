"""Real training: which learner uses which samples, and the weights that one process would get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from bench.steps.training.problem import TrainingProblem
from bench.steps.training.rules import ReceivedGradient, UpdateRule

Vector = NDArray[Any]


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


class WeightHistory:
    """Copies of weights after some updates, whose losses are computed when training is over.

    There are at most ``most`` copies beside the first, with as many updates between any two: when
    there are more, every second one is dropped. ``entries``: numbers of updates, and the weights.
    """

    def __init__(self, weights: Vector, most: int = 100) -> None:
        self._most, self._every = most, 1
        self.entries: list[tuple[int, Vector]] = [(0, weights.copy())]

    def add(self, updates: int, weights: Vector) -> None:
        """Keep a copy of the weights after so many updates, unless it is too close to the last."""
        if updates % self._every:
            return
        self.entries.append((updates, weights.copy()))
        if len(self.entries) > self._most + 1:
            self._every *= 2
            self.entries = [entry for entry in self.entries if not entry[0] % self._every]
