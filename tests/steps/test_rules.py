"""The rules of an update: what each does, said again in plain words, on one shard."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.steps.training.problem import RULES, ReceivedGradient, rule

RATE = 0.5
_numbers = st.lists(st.floats(-8, 8, width=32), min_size=6, max_size=6)


def _vector(values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


@given(st.lists(_numbers, min_size=1, max_size=4), _numbers)
def test_fresh_gradients_are_plain_descent(gradients: list[list[float]], at: list[float]) -> None:
    """Rule: with no staleness every rule but Adagrad is w - α · mean, and α, α₀, η_max are one."""
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
    """Rule: each element has a sum of squares of its own, so shards do what the whole does."""
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
    """Rule: gradients are added in the order given: the same order gives the same bits."""
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
    """Rule: a learner's own buffer may be what arrives in one process."""
    for name in RULES:
        gradient = np.ones(3, np.float32)
        rule(name, RATE)()(
            np.zeros(3, np.float32), [ReceivedGradient(gradient, 1, np.ones(3, "f4"))] * 2
        )
        assert np.array_equal(gradient, np.ones(3))
