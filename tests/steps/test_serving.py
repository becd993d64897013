"""Servers and learners over real messages: what travels, who is cancelled, who may fail."""

from __future__ import annotations

from threading import Thread
from typing import Any

import numpy as np
import pytest

from bench.steps.server.hooks import Learner, PlainTraining, Server, Vector, parts
from bench.steps.server.learning import Learned, Rounds
from bench.steps.server.protocol import Core, UpdateProtocol, update_protocol
from bench.steps.server.serving import Served, Serving
from bench.steps.server.threads import Post, ThreadLearner, ThreadServer
from busbar.errors import RankFailure

ELEMENTS = 1001


class _Fails(PlainTraining):
    """Learner 1 gives up at its fifth gradient."""

    def learner(self, number: int) -> Learner:
        plain = super().learner(number)
        return _Failing(plain) if number == 1 else plain


class _Exact(PlainTraining):
    """Learners look at every weight; servers have the whole of them."""

    def learner(self, number: int) -> Learner:
        return _Looking(super().learner(number))


class _Looking:
    def __init__(self, plain: Learner) -> None:
        self._plain = plain

    def gradient(self, weights: Vector, version: int) -> Vector:
        if not (weights == -version).all():
            raise RankFailure(f"weights are {-weights}, not of version {version}")
        return self._plain.gradient(weights, version)


class _Failing:
    def __init__(self, plain: Learner) -> None:
        self._plain, self._left = plain, 5

    def gradient(self, weights: Vector, version: int) -> Vector:
        self._left -= 1
        if not self._left:
            raise RankFailure("the fifth gradient")
        return self._plain.gradient(weights, version)


def _play(
    protocol: UpdateProtocol, updates: int, training: PlainTraining, servers: int = 1
) -> tuple[list[Served | RankFailure], list[Learned], list[Server]]:
    """What servers and learners did that are threads of this process."""
    places, post = parts(training.elements, servers), Post(servers, protocol.learners)
    made = [training.server(place) for place in places]
    served: dict[int, Served | RankFailure] = {}
    learned: dict[int, Learned] = {}

    def serve(number: int) -> None:
        core = Core(protocol, range(protocol.learners))
        try:
            served[number] = Serving(
                ThreadServer(post, number),
                core,
                made[number],
                training.coding(places),
                number,
                lambda count, _: count >= updates,
            ).run()
        except RankFailure as error:
            served[number] = error

    def learn(number: int) -> None:
        weights = np.empty(training.elements, training.dtype)
        end = ThreadLearner(post, number, weights, places)
        rounds = Rounds(
            end,
            protocol,
            training.learner(number),
            training.coding(places),
            places,
            weights,
            lambda n: 0.0005 * ((n + number) % 3),
            number=number,
        )
        learned[number] = rounds.run()

    threads = [Thread(target=serve, args=(n,), daemon=True) for n in range(servers)]
    threads += [Thread(target=learn, args=(n,), daemon=True) for n in range(protocol.learners)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return (
        [served[n] for n in range(servers)],
        [learned[n] for n in range(protocol.learners)],
        made,
    )


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    "name", ["sync", "k-sync:2", "k-batch-sync:3", "async", "k-async:2", "k-batch-async:3"]
)
def test_weights_are_what_their_version_says(name: str, servers: int) -> None:
    """Rule: every server makes so many updates, whoever was cancelled meanwhile."""
    kind = _Exact if servers == 1 else PlainTraining
    training: Any = kind(ELEMENTS, np.dtype("float32"))
    protocol = update_protocol(name, 4, servers)
    served, learned, made = _play(protocol, 40, training, servers)
    for one, server in zip(served, made, strict=True):
        assert isinstance(one, Served)
        assert len(one.updates) == 40
        assert (server.weights == -40).all()
        assert sum(one.staleness.values()) == 40 * protocol.needed
        assert set(one.staleness) == {0} or not protocol.cancels
        assert 0 <= one.utilisation <= 1
        assert len(one.waits) == one.gradients
    assert sum(len(server.weights) for server in made) == ELEMENTS
    assert all(not one.failed for one in learned)
    counted = [one.gradients for one in served if isinstance(one, Served)]
    assert max(counted) <= sum(one.pushed for one in learned)


def test_who_fails_does_not_stop_an_asynchronous_run() -> None:
    """Rule: an asynchronous run loses a learner and goes on; a synchronous one names it."""
    training = _Fails(ELEMENTS, np.dtype("float32"))
    (served,), learned, _ = _play(update_protocol("async", 4), 100, training)
    assert isinstance(served, Served)
    assert [(learner, why) for _, learner, why in served.lost] == [(1, "the fifth gradient")]
    assert len(served.updates) == 100
    assert learned[1].failed
    (failed,), _, _ = _play(update_protocol("sync", 4), 100, training)
    assert isinstance(failed, RankFailure)
    assert str(failed).startswith("learner 1 the fifth gradient; sync cannot go on without it")


def test_weights_of_another_version_are_noticed() -> None:
    """Rule: a learner that is sent older weights than the answer says fails with both versions."""
    learner = PlainTraining(3, np.dtype("float32")).learner(2)
    learner.gradient(np.full(3, -7, np.float32), 7)
    with pytest.raises(RankFailure, match="learner 2 was sent weights of version 6 as 7"):
        learner.gradient(np.full(3, -6, np.float32), 7)
