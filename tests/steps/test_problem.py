"""Problems that are trained for real: their gradients, their data, whose samples are whose."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.steps.training.problem import PROBLEMS, TrainingProblem, shape
from tests.conftest import examples

SMALL = ":features=5:samples=64"


def _problem(name: str, seed: int = 3) -> TrainingProblem:
    return TrainingProblem.of(
        shape(name + SMALL + (":hidden=7" if name == "network" else ""), 4), seed
    )


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_gradient_is_the_loss_s(name: str) -> None:
    """Rule: the gradient over all samples is what finite differences of the loss say."""
    problem = _problem(name)
    weights = problem.start().astype(np.float64)
    gradient = problem.gradient(weights, np.arange(64))
    for n in range(len(weights)):
        step = np.zeros_like(weights)
        step[n] = 1e-5
        slope = (problem.loss(weights + step) - problem.loss(weights - step)) / 2e-5
        assert abs(slope - gradient[n]) < 1e-7, n


@given(st.sampled_from(sorted(PROBLEMS)), st.integers(0, 1000), st.integers(1, 6))
@examples(30)
def test_learners_together_take_the_whole_batch(name: str, update: int, learners: int) -> None:
    """Rule: the mean of P gradients is that of one batch P times as large, to rounding."""
    problem = _problem(name)
    first = update * learners
    each = [problem.samples(first + one) for one in range(learners)]
    assert np.array_equal(np.concatenate(each), problem.samples(first, learners))
    weights = problem.start()
    parts = np.mean([problem.gradient(weights, one) for one in each], axis=0)
    whole = problem.gradient(weights, problem.samples(first, learners))
    assert np.allclose(parts, whole, rtol=1e-4, atol=1e-6)


def test_the_seed_says_all() -> None:
    """Rule: ranks that know the seed have the same data and weights; another seed has others."""
    one, same, other = _problem("network"), _problem("network"), _problem("network", 4)
    assert np.array_equal(one.inputs, same.inputs) and np.array_equal(one.labels, same.labels)
    assert np.array_equal(one.start(), same.start())
    assert not np.array_equal(one.labels, other.labels)
    assert not np.array_equal(one.start(), other.start())


@pytest.mark.parametrize("name", PROBLEMS)
def test_there_is_something_to_learn(name: str) -> None:
    """Rule: descent from the start ends well below the loss of guessing, and above none at all."""
    problem = TrainingProblem.of(shape(name, 16), 0)
    weights = problem.start()
    for update in range(600):
        weights -= np.float32(0.3) * problem.gradient(weights, problem.samples(4 * update, 4))
    assert 0.1 < problem.loss(weights) < 0.8 * np.log(10)


def test_weights_that_are_no_numbers_have_no_loss() -> None:
    """Rule: a run that diverges says so by its loss and by no warning."""
    problem = _problem("network")
    weights = np.full(problem.shape.size, np.float32(np.inf))
    assert not np.isfinite(problem.loss(weights))
    assert not np.isfinite(problem.gradient(weights, problem.samples(0))).all()


def test_tensors_fill_the_vector() -> None:
    """Rule: the tensors are the vector in the order of a backward pass: the last layer's first."""
    small = shape("network:hidden=7:features=5", 1)
    assert small.tensors == (
        ("bias2", (10,)),
        ("weight2", (7, 10)),
        ("bias1", (7,)),
        ("weight1", (5, 7)),
    )
    assert small.size == 10 + 70 + 7 + 35
    # Of one sample the last bias's gradient is what the classes' probabilities are off by.
    problem = TrainingProblem.of(small, 0)
    assert abs(problem.gradient(problem.start(), problem.samples(0))[:10].sum()) < 1e-6
