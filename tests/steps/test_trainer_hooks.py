"""A parameter server with real gradients: versions that were read, order, codes with a memory."""

import numpy as np
import pytest

from bench.steps.server.trainer_hooks import ProblemTrainer
from bench.steps.training.codecs import codec
from bench.steps.training.problem import (
    RULES,
    SharedProblem,
    TrainingProblem,
    compare_with_one_process,
    rule,
    shape,
)


def _served(text: str = "fixed", code: str = "none", learners: int = 3) -> ProblemTrainer:
    problem = TrainingProblem.of(shape("softmax:samples=256:features=6", 8), 1)
    return ProblemTrainer(SharedProblem(problem, rule(text, 0.2), learners), codec(code))


def _halves(training: ProblemTrainer) -> list[slice]:
    half = training.elements // 2
    return [slice(0, half), slice(half, training.elements)]


@pytest.mark.parametrize("text", ["fixed", "staleness", "adagrad"])
def test_sync_over_shards_is_one_process_to_the_bit(text: str) -> None:
    """Rule: with any order of arrival and any shards, the weights are those of one process.

    The rule ``distance`` is not tested: a shard computes its own distance.
    """
    training = _served(text)
    shared, places = training._shared, _halves(training)
    servers = [training.shard(place) for place in places]
    learners = [training.gradient_function(n) for n in range(3)]
    random = np.random.default_rng(0)
    for version in range(20):
        weights = np.concatenate([server.weights for server in servers])
        gradients = [learner(weights, version) for learner in learners]
        for server, place in zip(servers, places, strict=True):
            for n in random.permutation(3).tolist():
                server.apply(gradients[n][place], n, 0)
            server.update(3)
    weights = np.concatenate([server.weights for server in servers])
    assert compare_with_one_process(shared, [(20, weights)]).bits
    kept = [server.history.entries for server in servers if server.history]
    joined = [np.concatenate([part[n][1] for part in kept]) for n in (0, 20)]
    assert np.array_equal(joined[0], shared.problem.start())
    assert np.array_equal(joined[1], weights)


def test_a_distance_is_from_the_weights_that_were_read() -> None:
    """Rule: a gradient that is n updates stale was computed from the weights n updates ago."""
    training = _served("distance:c=1e-3")
    server = training.shard(slice(0, training.elements))
    before = []
    for staleness in (0, 1, 2, 3, 3, 2):
        before.append(server.weights.copy())
        gradient = np.ones(training.elements, np.float32)
        server.apply(gradient, 0, staleness)
        gradient[:] = np.nan  # it may be overwritten once it has been taken
        server.update(1)
        apart_ = float(np.sum((before[-1] - before[-1 - staleness]).astype(float) ** 2))
        rate = min(1e-3 / apart_, 0.2) if apart_ else 0.2
        assert server.weights == pytest.approx(before[-1] - rate, abs=1e-6)


@pytest.mark.parametrize("text", RULES)
def test_only_so_many_weights_are_kept(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: however stale a gradient and however long the run, memory is bounded."""
    monkeypatch.setattr("bench.steps.server.trainer_hooks._MOST_KEPT", 4)
    monkeypatch.setattr("bench.steps.server.trainer_hooks._FEWEST_KEPT", 4)
    server = _served(text).shard(slice(0, 10))
    for update in range(50):
        server.apply(np.ones(10, np.float32), 0, update)
        server.update(1)
    assert len(server._earlier) == (4 if text == "distance" else 0)
    assert np.isfinite(server.weights).all()


@pytest.mark.parametrize("code", ["none", "fp16", "int8", "1bit", "topk:fraction=0.2"])
def test_codes_of_shards(code: str) -> None:
    """Rule: every server decodes what was encoded for it, and each shard has its own feedback."""
    training = _served(code=code)
    places = _halves(training)
    ends = training.coding(places), training.coding(places)
    chosen = codec(code)
    sums = np.zeros((2, training.elements))
    for turn in range(60):
        gradient = np.random.default_rng(turn).standard_normal(training.elements).astype("f4")
        for server, place in enumerate(places):
            data = ends[0].encode(gradient[place], server)
            assert data.nbytes == chosen.nbytes(place.stop - place.start)
            sums[0][place] += gradient[place]
            sums[1][place] += ends[1].decode(data.view(np.uint8), server)
    if chosen.feedback:
        left = np.concatenate([f.left for f in ends[0]._feedback])
        assert np.allclose(sums[0], sums[1] + left, atol=1e-3)
    else:
        assert np.allclose(sums[0], sums[1], atol=0.5)
