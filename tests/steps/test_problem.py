"""Problems that are trained for real: gradients, update rules, whose samples are whose."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.steps.training.problem import (
    PROBLEMS,
    RULES,
    Deviation,
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

SMALL = ":features=5:samples=64"


def _problem(name: str, seed: int = 3) -> TrainingProblem:
    return TrainingProblem.of(
        shape(name + SMALL + (":hidden=7" if name == "network" else ""), 4), seed
    )


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_gradient_is_the_loss_s(name: str) -> None:
    """Rule: the gradient over all samples equals finite differences of the loss."""
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
    """Rule: the same seed gives the same data and weights; another seed gives others."""
    one, same, other = _problem("network"), _problem("network"), _problem("network", 4)
    assert np.array_equal(one.inputs, same.inputs) and np.array_equal(one.labels, same.labels)
    assert np.array_equal(one.start(), same.start())
    assert not np.array_equal(one.labels, other.labels)
    assert not np.array_equal(one.start(), other.start())


@pytest.mark.parametrize("name", PROBLEMS)
def test_there_is_something_to_learn(name: str) -> None:
    """Rule: after descent the loss is well below that of guessing, and above 0."""
    problem = TrainingProblem.of(shape(name, 16), 0)
    weights = problem.start()
    for update in range(600):
        weights -= np.float32(0.3) * problem.gradient(weights, problem.samples(4 * update, 4))
    assert 0.1 < problem.loss(weights) < 0.8 * np.log(10)


def test_weights_that_are_no_numbers_have_no_loss() -> None:
    """Rule: if a run diverges, its loss is not finite, and there is no warning."""
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


RATE = 0.5
_numbers = st.lists(st.floats(-8, 8, width=32), min_size=6, max_size=6)


def _vector(values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


@given(st.lists(_numbers, min_size=1, max_size=4), _numbers)
def test_fresh_gradients_are_plain_descent(gradients: list[list[float]], at: list[float]) -> None:
    """Rule: without staleness every rule but Adagrad is w - α · mean of the gradients."""
    expected = _vector(at) - np.float32(RATE) * np.mean(gradients, axis=0)
    for name in ("fixed", "staleness", "distance:c=3"):
        weights = _vector(at)
        rule(name, RATE)()(
            weights, [ReceivedGradient(_vector(g), 0, _vector(at)) for g in gradients]
        )
        assert np.allclose(weights, expected, atol=1e-5), name


def test_a_rate_falls_with_the_mean_staleness() -> None:
    """Rule: α = α₀/⟨σ⟩ over all gradients so far, never above α₀."""
    update, one = rule("staleness", RATE)(), np.ones(1, np.float32)
    weights, moved = np.zeros(1, np.float32), []
    for staleness in (0, 1, 5, 6):
        before = weights.copy()
        update(weights, [ReceivedGradient(one, staleness)])
        moved.append(float((before - weights)[0]))
    assert moved == pytest.approx([RATE, RATE, RATE / 2, RATE / 3])


def test_a_rate_falls_with_the_distance() -> None:
    """Rule: η_j = min(C/‖w_j − w_τ(j)‖², η_max), for each gradient."""
    update = rule("distance:c=2", RATE)()
    assert update.remembers
    for apart, expected in ((1.0, RATE), (2.0, 0.5), (4.0, 0.125)):
        weights = np.zeros(2, np.float32)
        update(weights, [ReceivedGradient(np.array([0, 1], "f4"), 3, np.array([apart, 0], "f4"))])
        assert weights == pytest.approx([0, -expected])
    weights = np.zeros(2, np.float32)
    gradient = np.array([0, 1], "f4")
    update(weights, [ReceivedGradient(gradient, 3, np.array([d, 0], "f4")) for d in (4.0, 0.0)])
    assert weights == pytest.approx([0, -(0.125 + RATE) / 2])


@given(st.lists(_numbers, min_size=1, max_size=5), st.integers(1, 5))
def test_shards_of_adagrad_are_adagrad(gradients: list[list[float]], cut: int) -> None:
    """Rule: each element has its own sum of squares, so shards give the result of the whole."""
    whole, left, right = (rule("adagrad", RATE)() for _ in range(3))
    weights, sharded = np.zeros(6, np.float32), np.zeros(6, np.float32)
    squares = np.zeros(6)
    expected = np.zeros(6)
    for values in gradients:
        gradient = _vector(values)
        whole(weights, [ReceivedGradient(gradient)])
        left(sharded[:cut], [ReceivedGradient(gradient[:cut])])
        right(sharded[cut:], [ReceivedGradient(gradient[cut:])])
        squares += np.square(values)
        expected -= RATE * np.array(values) / (np.sqrt(squares) + 1e-8)
    assert np.array_equal(weights, sharded)
    assert np.allclose(weights, expected, atol=1e-4)


@pytest.mark.parametrize("name", RULES)
def test_the_order_decides_the_last_bits_only(name: str) -> None:
    """Rule: gradients are added in the given order; the same order gives the same bits."""
    random = np.random.default_rng(1)
    gradients = [
        ReceivedGradient(g, 1, np.ones(50, "f4")) for g in random.random((7, 50), np.float32)
    ]
    results = []
    for order in (gradients, gradients, gradients[::-1]):
        weights = np.zeros(50, np.float32)
        rule(name, RATE)()(weights, order)
        results.append(weights)
    assert np.array_equal(results[0], results[1])
    assert np.allclose(results[0], results[2], rtol=1e-5)


def test_a_rule_leaves_the_gradients_alone() -> None:
    """Rule: a rule does not change the gradients, which may be a learner's own buffer."""
    for name in RULES:
        gradient = np.ones(3, np.float32)
        rule(name, RATE)()(
            np.zeros(3, np.float32), [ReceivedGradient(gradient, 1, np.ones(3, "f4"))] * 2
        )
        assert np.array_equal(gradient, np.ones(3))


def _training(name: str = "softmax", learners: int = 4, text: str = "fixed") -> SharedProblem:
    problem = TrainingProblem.of(shape(f"{name}:samples=512:features=6", 16), 1)
    return SharedProblem(problem, rule(text, 0.1), learners)


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_one_process_alone_with_the_whole_batch(name: str, text: str) -> None:
    """Rule: gradients added learner by learner give the same bits, the whole batch nearly."""
    training = _training(name, 4, text)
    weights, update = training.problem.start(), training.rule()
    for step in range(30):
        gradients = [training.gradient(weights, learner, step) for learner in range(4)]
        update(weights, [ReceivedGradient(gradient, 0, weights) for gradient in gradients])
    found = compare_with_one_process(training, [(0, training.problem.start()), (30, weights)])
    assert found.bits and found.updates == 30 and found.part == 0 and 0 < found.whole < 1e-4


def test_other_weights_are_told_apart() -> None:
    """Rule: one update more, or a missing gradient, is told from rounding."""
    training = _training()
    assert compare_with_one_process(training, [(5, training.alone(6, False))]).whole > 1e-3
    missing = SharedProblem(training.problem, training.rule, 3)
    assert compare_with_one_process(training, [(5, missing.alone(5, False))]).whole > 1e-3


@given(st.integers(0, 700), st.integers(1, 40))
@examples(40)
def test_a_history_has_few_weights_evenly(updates: int, most: int) -> None:
    """Rule: copies are equally many updates apart, in order, at most ``most`` besides the first."""
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
    """Rule: a loss curve ends before the first loss that is not finite."""
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


def test_fewer_updates_than_were_made_have_a_reason() -> None:
    """Rule: weights that are compared after fewer updates than the run made say why."""
    deviation = Deviation(4992, False, 1e-7, 1e-7)
    assert deviation.lines(4992)[0] == "    weights after 4992 updates"
    assert deviation.lines(7040, ": x")[0] == (
        "    weights after 4992 updates, as many as one process repeats in seconds: x"
    )
