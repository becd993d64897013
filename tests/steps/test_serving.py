"""Servers and learners over real messages: what travels, who is cancelled, who may fail."""

from __future__ import annotations

from itertools import count
from threading import Thread
from typing import Any

import numpy as np
import pytest

from bench.steps.server import learning
from bench.steps.server.ends import Answer, LearnerEnd
from bench.steps.server.hooks import Learner, PlainTraining, Server, Vector
from bench.steps.server.learning import Learned, Rounds
from bench.steps.server.protocol import UpdateProtocol, update_protocol
from bench.steps.server.serving import Served, Serving
from bench.steps.server.threads import Post, ThreadLearner, ThreadServer
from bench.steps.training.shared import parts
from busbar.errors import RankFailure

ELEMENTS = 1001


class _Fails(PlainTraining):
    """Learner 1 gives up at its fifth gradient."""

    def learner(self, number: int) -> Learner:
        plain, numbers = super().learner(number), count(1)

        def gradient(weights: Vector, version: int) -> Vector:
            if next(numbers) == 5:
                raise RankFailure("the fifth gradient")
            return plain(weights, version)

        return gradient if number == 1 else plain


class _Exact(PlainTraining):
    """Learners look at every weight; servers have the whole of them."""

    def learner(self, number: int) -> Learner:
        plain = super().learner(number)

        def gradient(weights: Vector, version: int) -> Vector:
            if not (weights == -version).all():
                raise RankFailure(f"weights are {-weights}, not of version {version}")
            return plain(weights, version)

        return gradient


def _play(
    protocol: UpdateProtocol, updates: int, training: PlainTraining, servers: int = 1
) -> tuple[list[Served | RankFailure], list[Learned], list[Server]]:
    """Run servers and learners as threads of this process, and return what they did."""
    places, post = parts(training.elements, servers), Post(servers, protocol.learners)
    made: dict[int, Server] = {}
    served: dict[int, Served | RankFailure] = {}
    learned: dict[int, Learned] = {}

    def serve(number: int) -> None:
        end = ThreadServer(post, number)
        serving = Serving(end, protocol, training, places, number, lambda n, _: n >= updates)
        made[number] = serving.server
        try:
            served[number] = serving.run()
        except RankFailure as error:
            served[number] = error

    def learn(number: int) -> None:
        weights = np.empty(training.elements, training.dtype)
        end = ThreadLearner(post, number, weights, places)
        rounds = Rounds(end, protocol, training, number, lambda n: 0.0005 * ((n + number) % 3))
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
        [made[n] for n in range(servers)],
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
    """Rule: an asynchronous run loses a learner and goes on; a synchronous one names it.

    Those that are left end where they may deadlock.
    """
    training = _Fails(ELEMENTS, np.dtype("float32"))
    (served,), learned, _ = _play(update_protocol("async", 4), 100, training)
    assert isinstance(served, Served)
    assert [(learner, why) for _, learner, why in served.lost] == [(1, "the fifth gradient")]
    assert len(served.updates) == 100
    assert learned[1].failed
    (failed,), _, _ = _play(update_protocol("sync", 4), 100, training)
    assert isinstance(failed, RankFailure)
    assert str(failed).startswith("learner 1 the fifth gradient; sync cannot go on without it")
    few, *_ = _play(update_protocol("k-async:2", 4, 3), 100, training, 3)
    assert {str(one).partition(",")[0] for one in few} == {
        "3 learners are too few for k-async:2 over 3 servers"
    }


class _Clock:
    now = 1.0

    def perf_counter(self) -> float:
        return self.now


class _Answering(LearnerEnd):
    """Pushes take a second; answers come at the moments of a script, each after a push of another.

    ``script``: of each answer when it comes, and the cause that it names (None: the push before).
    """

    def __init__(self, clock: _Clock, script: list[tuple[float, float | None]]) -> None:
        super().__init__(np.full(4, -9, np.float32), [slice(0, 4)])
        self._clock, self._script, self._version, self._pushed = clock, script, 0, 0.0

    def push(self, server: int, version: int, gradient: Vector) -> None:
        self._pushed = self._clock.now
        self._clock.now += 1

    def wait(self, seconds: float | None) -> Answer | None:
        if not self._script:
            return Answer(0, None, self._clock.now, 0.0)
        if seconds is not None and self._script[0][0] > self._clock.now + seconds:
            self._clock.now += seconds
            return None
        when, cause = self._script.pop(0)
        self._clock.now, self._version = max(when, self._clock.now), self._version + 1
        return Answer(0, self._version, when, self._pushed if cause is None else cause)

    def say(self, kind: int, text: str = "") -> None:
        pass


@pytest.mark.parametrize(
    ("name", "script", "rounds", "exposed"),
    [
        # Ten seconds computing from 1 on, a push, and two seconds until the weights are there.
        ("async", [(1, 0.0), (14, None), (28, None)], [13, 14], [3, 4]),
        # Another's push, begun at 20, is waited for: only what comes after it is communication.
        ("sync", [(1, 0.0), (23, 20.0), (40, 38.5)], [22, 17], [3, 1.5]),
        # Cancelled at 7 by a push that began at 5, and at once by one that had come meanwhile.
        ("k-sync:2", [(1, 0.0), (7, 5.0), (9, 8.0)], [6, 2], [2, 1]),
        # Cancelled at 9 by a push that had begun before this computation: no more than the round.
        ("k-sync:2", [(1, 0.0), (7, 5.0), (9, 5.5)], [6, 2], [2, 2]),
        # Goes on by itself: its own push alone is waited for.
        ("k-batch-sync:2", [(1, 0.0), (30, 29.0)], [11, 11, 7], [1, 1, 1]),
    ],
)
def test_exposed_is_what_a_learner_waits_for_messages(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    script: list[tuple[float, float | None]],
    rounds: list[float],
    exposed: list[float],
) -> None:
    """Rule: waiting for other learners is no communication; pushing and pulling is."""
    clock = _Clock()
    monkeypatch.setattr(learning, "time", clock)
    end, training = _Answering(clock, script), PlainTraining(4, np.dtype("float32"))
    learned = Rounds(end, update_protocol(name, 3), training, 0, lambda n: 10.0).run()
    n = len(rounds)
    assert (learned.rounds[:n], learned.exposed[:n]) == (rounds, exposed)
    assert set(learned.drawn) == {10.0}


def test_weights_of_another_version_are_noticed() -> None:
    """Rule: a learner that is sent older weights than the answer says fails with both versions."""
    learner = PlainTraining(3, np.dtype("float32")).learner(2)
    learner(np.full(3, -7, np.float32), 7)
    with pytest.raises(RankFailure, match="learner 2 was sent weights of version 6 as 7"):
        learner(np.full(3, -6, np.float32), 7)
