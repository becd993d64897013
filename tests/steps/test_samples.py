"""Training for real: whose samples, what one process alone gets, and curves of loss."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.steps.training.problem import (
    PROBLEMS,
    RULES,
    ReceivedGradient,
    SharedProblem,
    TrainingProblem,
    WeightHistory,
    compare_with_one_process,
    losses,
    rule,
    shape,
)
from tests.conftest import examples


def _training(name: str = "softmax", learners: int = 4, text: str = "fixed") -> SharedProblem:
    problem = TrainingProblem.of(shape(f"{name}:samples=512:features=6", 16), 1)
    return SharedProblem(problem, rule(text, 0.1), learners)


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_one_process_alone_with_the_whole_batch(name: str, text: str) -> None:
    """Rule: learner by learner in order is the same to the bit, the batch as one to rounding."""
    training = _training(name, 4, text)
    weights, update = training.problem.start(), training.rule()
    for step in range(30):
        gradients = [training.gradient(weights, learner, step) for learner in range(4)]
        update(weights, [ReceivedGradient(gradient, 0, weights) for gradient in gradients])
    found = compare_with_one_process(training, [(0, training.problem.start()), (30, weights)])
    assert found.bits and found.updates == 30 and found.part == 0 and 0 < found.whole < 1e-4


def test_other_weights_are_told_apart() -> None:
    """Rule: one more update, or one gradient left out, is no rounding."""
    training = _training()
    assert compare_with_one_process(training, [(5, training.alone(6, False))]).whole > 1e-3
    missing = SharedProblem(training.problem, training.rule, 3)
    assert compare_with_one_process(training, [(5, missing.alone(5, False))]).whole > 1e-3


@given(st.integers(0, 700), st.integers(1, 40))
@examples(40)
def test_a_history_has_few_weights_evenly(updates: int, most: int) -> None:
    """Rule: the first and at most so many more, copied, in order, at equal distances to the end."""
    weights = np.zeros(1, np.float32)
    history = WeightHistory(weights, most)
    for update in range(1, updates + 1):
        weights[0] = update
        history.add(update, weights)
    kept = history.entries
    assert kept[0][0] == 0 and len(kept) <= most + 1
    assert all(update == float(copy[0]) for update, copy in kept)
    distances = {b[0] - a[0] for a, b in pairwise(kept)}
    assert len(distances) <= 1 and updates - kept[-1][0] <= max(distances, default=updates)


def test_a_curve_ends_where_there_is_no_loss() -> None:
    """Rule: what has diverged is left out of a file of numbers."""
    problem = _training().problem
    history = WeightHistory(problem.start())
    for update, scale in enumerate((2.0, np.inf, 1.0), 1):
        with np.errstate(invalid="ignore"):
            history.add(update, problem.start() * np.float32(scale))
    points = losses(problem, history.entries, lambda update: update / 10)
    assert [(point.seconds, point.updates) for point in points] == [(0, 0), (0.1, 1)]
    assert points[0].loss == problem.loss(problem.start())
    assert compare_with_one_process(_training(), history.entries).updates == 3, (
        "the last that are numbers"
    )
