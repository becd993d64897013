"""Training for real: whose samples, what one process alone gets, and curves of loss."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.steps.training.problem import PROBLEMS, TrainingProblem, shape
from bench.steps.training.rates import RULES, Arrived, rule
from bench.steps.training.shared import LossCurve, SharedProblem, apart


def _training(name: str = "softmax", learners: int = 4, text: str = "fixed") -> SharedProblem:
    problem = TrainingProblem.of(shape(f"{name}:samples=512:features=6"), 1)
    return SharedProblem(problem, rule(text, 0.1), learners)


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_one_process_alone_with_the_whole_batch(name: str, text: str) -> None:
    """Rule: learner by learner in order is the same to the bit, the batch as one to rounding."""
    training = _training(name, 4, text)
    weights, update = training.problem.start(), training.rule()
    for step in range(30):
        gradients = [training.gradient(weights, learner, step) for learner in range(4)]
        update(weights, [Arrived(gradient, 0, weights) for gradient in gradients])
    found = apart(training, weights, 30)
    assert found.bits and found.part == 0 and 0 < found.whole < 1e-4


def test_other_weights_are_told_apart() -> None:
    """Rule: one more update, or one gradient left out, is no rounding."""
    training = _training()
    assert apart(training, training.alone(6, False), 5).whole > 1e-3
    missing = SharedProblem(training.problem, training.rule, 3)
    assert apart(training, missing.alone(5, False), 5).whole > 1e-3


@given(st.integers(1, 700), st.integers(1, 40), st.integers(1, 3))
@settings(max_examples=40)
def test_a_curve_has_few_points_evenly(updates: int, most: int, from_: int) -> None:
    """Rule: at most so many points, in order, at equal distances that cover what there was."""
    problem = _training().problem
    curve, weights = LossCurve(most), problem.start()[:1]
    for update in range(from_, from_ + updates):
        weights[0] = update
        curve.add(float(update), update, weights)
    kept = curve._kept
    assert len(kept) <= most
    assert all(seconds == update == float(copy[0]) for seconds, update, copy in kept)
    distances = {b[1] - a[1] for a, b in pairwise(kept)}
    assert distances in (set(), {curve._every})


def test_a_curve_ends_where_there_is_no_loss() -> None:
    """Rule: what has diverged is left out of a file of numbers."""
    problem = _training().problem
    curve = LossCurve()
    for update, scale in enumerate((1.0, 2.0, np.inf, 1.0)):
        with np.errstate(invalid="ignore"):
            curve.add(update, update, problem.start() * np.float32(scale))
    points = curve.points(problem)
    assert [point.updates for point in points] == [0, 1]
    assert points[0].loss == problem.loss(problem.start())
