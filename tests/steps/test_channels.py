"""Servers and learners over every kind of channel: messages, cancellation, failures."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from bench.steps.server import endpoint, loops
from bench.steps.server.endpoint import (
    NO_BYTES,
    Bytes,
    Channel,
    Endpoint,
    Header,
    Kind,
    Mailboxes,
    MergedChannel,
    MpiChannel,
    pack_header,
)
from bench.steps.server.loops import ServerLog, ServerLoop, WorkerLog, WorkerLoop
from bench.steps.server.protocol import UpdateProtocol, update_protocol
from bench.steps.server.socket_channel import CallingChannel, ListeningChannel, connect_to_run
from bench.steps.server.trainer_hooks import GradientFunction, OnesTrainer, ShardState, Vector
from bench.steps.training.problem import parts
from busbar.errors import RankFailure
from tests.steps.mpi_standin import MPI, Comm

ELEMENTS = 1001
Open = Callable[[], Channel]
"""Opens a channel; called by the thread that uses it."""


def _threads(servers: int, learners: int) -> tuple[list[Open], list[Open]]:
    boxes = Mailboxes(servers, learners)
    return (
        [partial(boxes.server, n) for n in range(servers)],
        [partial(boxes.learner, n) for n in range(learners)],
    )


def _mpi(servers: int, learners: int) -> tuple[list[Open], list[Open]]:
    channels: list[Open] = [
        partial(MpiChannel, comm, MPI, servers) for comm in Comm.of(servers + learners)
    ]
    return channels[:servers], channels[servers:]


_numbers = count()


def _listen(servers: int, learners: int) -> tuple[str, list[ListeningChannel]]:
    """The name of a run, and its servers' channels."""
    name = f"test-{os.getpid()}-{next(_numbers)}"
    about = {"servers": servers, "learners": learners, "bytes": 1 << 20}
    return name, [ListeningChannel(name, server, about) for server in range(servers)]


def _call(name: str, number: int) -> CallingChannel:
    return CallingChannel(connect_to_run(name, number)[1], number)


def _gathered(channel: ListeningChannel) -> Channel:
    channel.gather(lambda: None)
    return channel


def _sockets(servers: int, learners: int) -> tuple[list[Open], list[Open]]:
    name, channels = _listen(servers, learners)
    return (
        [partial(_gathered, channel) for channel in channels],
        [partial(_call, name, n) for n in range(learners)],
    )


def _merged(servers: int, learners: int) -> tuple[list[Open], list[Open]]:
    """Ranks of a run that processes may join."""
    serving, learning = _mpi(servers, learners)
    _, listening = _listen(servers, learners)
    merged: list[Open] = [
        partial(MergedChannel, ranks(), processes, learners)
        for ranks, processes in zip(serving, listening, strict=True)
    ]
    return merged, learning


BACKENDS = {"threads": _threads, "mpi": _mpi, "sockets": _sockets, "merged": _merged}
backends = pytest.mark.parametrize("backend", BACKENDS)
losing = pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "threads"])


def _together(*functions: Callable[[], None]) -> None:
    """Run each function in a thread of its own."""
    threads = [Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def _open(openers: Sequence[Open]) -> list[Channel]:
    """The channels, opened at the same time, since some wait for the others."""
    channels: dict[int, Channel] = {}

    def keep(number: int) -> None:
        channels[number] = openers[number]()

    _together(*(partial(keep, number) for number in range(len(openers))))
    return [channels[number] for number in range(len(openers))]


class _Fails(OnesTrainer):
    """Learner 1 gives up at its fifth gradient."""

    def gradient_function(self, learner: int) -> GradientFunction:
        plain, numbers = super().gradient_function(learner), count(1)

        def gradient(weights: Vector, version: int) -> Vector:
            if next(numbers) == 5:
                raise RankFailure("the fifth gradient")
            return plain(weights, version)

        return gradient if learner == 1 else plain


class _Exact(OnesTrainer):
    """Learners look at every weight; servers have the whole of them."""

    def gradient_function(self, learner: int) -> GradientFunction:
        plain = super().gradient_function(learner)

        def gradient(weights: Vector, version: int) -> Vector:
            if not (weights == -version).all():
                raise RankFailure(f"weights are {-weights}, not of version {version}")
            return plain(weights, version)

        return gradient


def _play(
    backend: str, protocol: UpdateProtocol, updates: int, trainer: OnesTrainer, servers: int = 1
) -> tuple[list[ServerLog | RankFailure], list[WorkerLog], list[ShardState]]:
    """Run servers and learners as threads of this process, and return what they did."""
    places = parts(trainer.elements, servers)
    serving, learning = BACKENDS[backend](servers, protocol.learners)
    shards: dict[int, ShardState] = {}
    served: dict[int, ServerLog | RankFailure] = {}
    learned: dict[int, WorkerLog] = {}

    def serve(number: int) -> None:
        channel = serving[number]()
        loop = ServerLoop(channel, protocol, trainer, places, number, lambda n, _: n >= updates)
        shards[number] = loop.shard
        try:
            served[number] = loop.run()
        except RankFailure as error:
            served[number] = error

    def learn(number: int) -> None:
        weights = np.empty(trainer.elements, trainer.dtype)
        learned[number] = WorkerLoop(
            learning[number](), weights, places, protocol, trainer, number,
            lambda n: 0.0005 * ((n + number) % 3),
        ).run()  # fmt: skip

    _together(
        *(partial(serve, n) for n in range(servers)),
        *(partial(learn, n) for n in range(protocol.learners)),
    )
    return (
        [served[n] for n in range(servers)],
        [learned[n] for n in range(protocol.learners)],
        [shards[n] for n in range(servers)],
    )


@backends
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    "name", ["sync", "k-sync:2", "k-batch-sync:3", "async", "k-async:2", "k-batch-async:3"]
)
def test_weights_are_what_their_version_says(backend: str, name: str, servers: int) -> None:
    """Rule: every server makes all updates, and weights match their version."""
    kind = _Exact if servers == 1 else OnesTrainer
    trainer: Any = kind(ELEMENTS, np.dtype("float32"))
    protocol = update_protocol(name, 4, servers)
    served, learned, shards = _play(backend, protocol, 40, trainer, servers)
    for log, shard in zip(served, shards, strict=True):
        assert isinstance(log, ServerLog)
        assert len(log.updates) == 40
        assert (shard.weights == -40).all()
        assert sum(log.staleness.values()) == 40 * protocol.needed
        assert set(log.staleness) == {0} or not protocol.cancels
        assert 0 <= log.utilisation <= 1
        assert len(log.waits) == log.gradients
        assert log.bytes_in >= shard.weights.nbytes * log.gradients
        # The first weights are no update's.
        assert log.bytes_out == shard.weights.nbytes * (log.answers - protocol.learners)
    assert sum(len(shard.weights) for shard in shards) == ELEMENTS
    assert all(not log.failed for log in learned)
    counted = [log.gradients for log in served if isinstance(log, ServerLog)]
    assert max(counted) <= sum(log.pushed for log in learned)


@backends
def test_who_fails_does_not_stop_an_asynchronous_run(backend: str) -> None:
    """Rule: an asynchronous run continues without a lost learner; a synchronous one names it.

    The run ends if the remaining learners may deadlock.
    """
    trainer = _Fails(ELEMENTS, np.dtype("float32"))
    (served,), learned, _ = _play(backend, update_protocol("async", 4), 100, trainer)
    assert isinstance(served, ServerLog)
    assert [(learner, why) for _, learner, why in served.lost] == [(1, "the fifth gradient")]
    assert len(served.updates) == 100
    assert learned[1].failed
    (failed,), _, _ = _play(backend, update_protocol("sync", 4), 100, trainer)
    assert isinstance(failed, RankFailure)
    assert str(failed).startswith("learner 1 the fifth gradient; sync cannot go on without it")
    few, *_ = _play(backend, update_protocol("k-async:2", 4, 3), 100, trainer, 3)
    assert {str(error).partition(",")[0] for error in few} == {
        "3 learners are too few for k-async:2 over 3 servers"
    }


def _exit(channel: Channel) -> None:
    """End the rank, or the process, that has this channel."""
    if isinstance(channel, MergedChannel):
        channel = channel._ranks
    if isinstance(channel, MpiChannel):
        channel._comm.fail()
    else:
        channel.close()


def _send_header_only(channel: Channel) -> None:
    """Announce a gradient of 4004 bytes to server 0."""
    header = pack_header(Kind.GRADIENT, 0, 4 * ELEMENTS)
    if isinstance(channel, MpiChannel):
        channel._comm.Isend([header], 0, 1)
    else:
        assert isinstance(channel, CallingChannel)
        channel._servers[0].sendall(header)


@losing
@pytest.mark.parametrize("within", [False, True])
def test_a_lost_learner_is_one_message(backend: str, within: bool) -> None:
    """Rule: a lost learner is reported once, with the reason, even in the middle of a message.

    Messages to it are dropped afterwards; messages of other learners still work.
    """
    serving, learning = BACKENDS[backend](1, 2)
    channel, other, lost = _open([*serving, *learning])
    server, learner = Endpoint(channel), Endpoint(other, [np.empty(4, np.uint8)])
    if within:
        _send_header_only(lost)
    _exit(lost)
    message = server.receive(30)
    assert message is not None and (message.peer, message.kind) == (1, Kind.FAILED)
    assert bytes(message.data).decode().endswith(") was lost")
    server.post((0, 1), Kind.WEIGHTS, 7, np.arange(4, dtype=np.uint8))
    answer = learner.receive(30)
    assert answer is not None and (answer.kind, answer.version) == (Kind.WEIGHTS, 7)
    assert answer.data.tolist() == [0, 1, 2, 3]
    assert server.receive(0.0) is None
    channel.close()


@losing
def test_a_learner_ends_without_its_server(backend: str) -> None:
    """Rule: if a server has exited, no learner waits for it, and the error names the server."""
    trainer = OnesTrainer(ELEMENTS, np.dtype("float32"))
    serving, learning = BACKENDS[backend](2, 1)
    first, second, channel = _open([*serving, *learning])
    _exit(second)
    weights, places = np.empty(ELEMENTS, np.float32), parts(ELEMENTS, 2)
    protocol = update_protocol("async", 1, 2)
    loop = WorkerLoop(channel, weights, places, protocol, trainer, 0, lambda n: 0.0)
    with pytest.raises(RankFailure, match="server 1 is gone"):
        loop.run()
    server = Endpoint(first)
    try:
        message = server.receive(30)
    except RankFailure:  # a rank of MPI notices it, too
        message = server.receive(30)
    assert message is not None and bytes(message.data) == b"server 1 is gone"
    first.close()


def test_a_learner_that_is_given_up_does_not_join() -> None:
    """Rule: a learner that asked to join and was then lost does not join."""
    name, (channel,) = _listen(1, 0)
    learner: list[Channel] = []
    _together(lambda: learner.append(_call(name, 0)), lambda: _select_until(channel, learner))
    while not channel._headers:
        channel._select(0.1)
    channel._lose(channel._headers[0][1])
    assert channel.poll(0.0) is None
    assert [number for number, _ in channel.lost] == [0]
    channel.close()


def test_file_descriptors_above_1023_are_waited_for() -> None:
    """Rule: sockets carry messages both ways above descriptor 1023, where select(2) does not work.

    A server of many learners has a descriptor for each.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"at most {hard} files may be open")
    with ExitStack() as stack:
        if soft < 2048:
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
            resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
        while stack.enter_context(Path(os.devnull).open("rb")).fileno() < 1100:
            pass
        server, learner = _open([one for side in _sockets(1, 1) for one in side])
        learner.post([0], Kind.GRADIENT, 3, np.ones(9, np.uint8), 0.0)
        gradient = server.poll(30)
        assert gradient is not None and gradient[1][:3] == (Kind.GRADIENT, 3, 9)
        data = server.read(0, 9, None)
        assert data is not None and bytes(data) == bytes([1] * 9)
        server.post([0], Kind.STOP, 0, NO_BYTES, 0.0)
        stopped = learner.poll(30)
        assert stopped is not None and stopped[1][0] == Kind.STOP
        learner.close()
        server.close()


def _select_until(channel: ListeningChannel, done: Sequence[object]) -> None:
    while not done:
        channel._select(0.1)


@pytest.mark.parametrize(
    "messages",
    [
        [(Kind.GRADIENT, 0, 0)],  # before it has joined
        [(Kind.JOIN, 3, 8)],
        [(Kind.JOIN, -3, 0)],
        [(Kind.JOIN, 3, 0), (Kind.JOIN, 3, 0)],
        [(Kind.JOIN, 3, 0), (Kind.GRADIENT, 0, 1 << 30)],
        [(Kind.JOIN, 3, 0), (Kind.BYE, 0, -1)],
    ],
)
def test_a_process_with_invalid_messages_is_cut_off(messages: list[tuple[int, int, int]]) -> None:
    """Rule: an invalid message ends the connection, and not the run."""
    name, (channel,) = _listen(1, 0)
    ended: list[bytes] = []

    def send() -> None:
        (end,) = connect_to_run(name)[1]
        for message in messages:
            end.sendall(pack_header(*message))
        ended.append(end.recv(1))

    def serve() -> None:
        while not ended:
            channel.poll(0.1)

    _together(send, serve)
    assert ended == [b""]
    assert [number for number, _ in channel.lost] == [3] * (len(messages) - 1)
    channel.close()


class _Clock:
    now = 1.0

    def perf_counter(self) -> float:
        return self.now


class _Scripted(Channel):
    """A channel whose pushes take a second, and whose weights arrive at given times.

    ``script``: for each the time when it comes, and its cause (None: the push before).
    """

    def __init__(self, clock: _Clock, script: list[tuple[float, float | None]]) -> None:
        super().__init__()
        self._clock, self._script, self._version, self._pushed = clock, script, 0, 0.0

    def poll(self, seconds: float) -> tuple[int, Header] | None:
        if not self._script:
            return 0, (Kind.STOP, 0, 0, self._clock.now, 0.0)
        if self._script[0][0] > self._clock.now + seconds:
            self._clock.now += seconds
            return None
        when, cause = self._script.pop(0)
        self._clock.now, self._version = max(when, self._clock.now), self._version + 1
        cause = self._pushed if cause is None else cause
        return 0, (Kind.WEIGHTS, self._version, 16, when, cause)

    def read(self, peer: int, nbytes: int, into: Bytes | None) -> Bytes | None:
        return NO_BYTES

    def post(
        self, peers: Sequence[int], kind: int, version: int, data: Bytes, cause: float
    ) -> None:
        pass

    def push(self, peer: int, kind: int, version: int, data: Bytes) -> None:
        self._pushed = self._clock.now
        self._clock.now += 1


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
    """Rule: exposed communication is pushing and pulling, not waiting for other learners."""
    clock = _Clock()
    monkeypatch.setattr(loops, "time", clock)
    trainer, weights = OnesTrainer(4, np.dtype("float32")), np.full(4, -9, np.float32)
    log = WorkerLoop(
        _Scripted(clock, script), weights, [slice(0, 4)], update_protocol(name, 3), trainer, 0,
        lambda n: 10.0,
    ).run()  # fmt: skip
    n = len(rounds)
    assert (log.rounds[:n], log.exposed[:n]) == (rounds, exposed)
    assert set(log.drawn) == {10.0}


class _OnItsWay(_Scripted):
    """Headers arrive 1.7 s after they were sent and are found 0.3 s later; payloads take 5 s."""

    def poll(self, seconds: float) -> tuple[int, Header] | None:
        if (received := super().poll(seconds)) is not None:
            self.looked = self._clock.now + 1.7
            self._clock.now += 2.0
        return received

    def read(self, peer: int, nbytes: int, into: Bytes | None) -> Bytes | None:
        self._clock.now += 5.0
        return super().read(peer, nbytes, into)


@pytest.mark.parametrize(("one_clock", "travel", "unnoticed"), [(True, 7, 0.3), (False, 5, 0)])
def test_weights_on_their_way_are_not_noticed_late(
    monkeypatch: pytest.MonkeyPatch, one_clock: bool, travel: float, unnoticed: float
) -> None:
    """Rule: a learner notices weights late by the time since it looked, not by their journey.

    Over several hosts only the time of receiving is known.
    """
    clock = _Clock()
    monkeypatch.setattr(loops, "time", clock)
    monkeypatch.setattr(endpoint, "time", clock)
    trainer, weights = OnesTrainer(4, np.dtype("float32")), np.full(4, -9, np.float32)
    log = WorkerLoop(
        _OnItsWay(clock, [(1, 0.0), (40, None), (80, None)]), weights, [slice(0, 4)],
        update_protocol("async", 3), trainer, 0, lambda n: 10.0, one_clock=one_clock,
    ).run()  # fmt: skip
    assert log.answers == 3
    assert log.travel == pytest.approx(3 * travel)
    assert log.unnoticed == pytest.approx(3 * unnoticed)


def test_weights_of_another_version_are_noticed() -> None:
    """Rule: a learner whose weights are older than their version fails and names both versions."""
    gradient = OnesTrainer(3, np.dtype("float32")).gradient_function(2)
    gradient(np.full(3, -7, np.float32), 7)
    with pytest.raises(RankFailure, match="learner 2 was sent weights of version 6 as 7"):
        gradient(np.full(3, -6, np.float32), 7)


def test_the_last_message_of_a_learner_comes_before_its_end() -> None:
    """Rule: a learner that leaves, then ends with an error, has left; it is not lost before.

    Its message arrives here after the server has found no message, and before it looks who failed.
    """
    boxes, ended = Mailboxes(1, 2), list[int]()
    learner = boxes.learner(1)

    def failed() -> list[int]:
        if not ended:
            learner.post((0,), Kind.BYE, 0, NO_BYTES, 0.0)
            ended.append(1)
        return ended

    server = boxes.server(0, failed)
    assert server.poll(0.0) is None and not server.lost
    received = server.poll(0.0)
    assert received is not None and (received[0], received[1][0]) == (1, Kind.BYE)
    assert server.poll(0.0) is None and list(server.lost) == [(1, "ended with an error")]
    server.lost.clear()
    assert server.poll(0.0) is None and not server.lost, "it is reported once"
