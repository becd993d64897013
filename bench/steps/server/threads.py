"""Servers and learners as threads of one process: a message is a copy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Semaphore

import numpy as np

from bench.steps.server.ends import (
    NOTHING,
    Answer,
    Arrival,
    LearnerEnd,
    MessageKind,
    ServerEnd,
)
from bench.steps.server.hooks import Vector


class _Message:
    """A push: what was copied, and what lets its learner write there again."""

    def __init__(
        self, kind: int, learner: int, version: int, data: Vector, free: Semaphore
    ) -> None:
        self.kind, self.learner, self.version, self.data = kind, learner, version, data
        self.free, self.sent = free, time.perf_counter()


class Post:
    """The mailboxes that all threads share."""

    def __init__(self, servers: int, learners: int) -> None:
        self.pushes: list[SimpleQueue[_Message]] = [SimpleQueue() for _ in range(servers)]
        #: Answers, and the weights of each.
        self.answers: list[SimpleQueue[tuple[Answer, Vector]]] = [
            SimpleQueue() for _ in range(learners)
        ]


class ThreadServer(ServerEnd):
    """See `ServerEnd`."""

    def __init__(self, post: Post, number: int) -> None:
        super().__init__()
        self._post, self._number = post, number
        self._last: _Message | None = None

    def receive(self, seconds: float) -> Arrival | None:
        """See `ServerEnd.receive`."""
        if self._last is not None:
            self._last.free.release()
            self._last = None
        before = time.perf_counter()
        try:
            message = self._post.pushes[self._number].get(timeout=seconds)
        except Empty:
            message = None
        began = time.perf_counter()
        if message is None or message.sent > before:  # it had to be waited for
            self.idle += (began if message is None else message.sent) - before
        if message is None:
            return None
        self._last = message
        self.bytes_in += message.data.nbytes
        return Arrival(
            message.kind, message.learner, message.version, message.sent, began, message.data
        )

    def put(
        self, learners: Sequence[int], kind: int, version: int, data: Vector, cause: float
    ) -> None:
        """See `ServerEnd.put`."""
        sent, copy = time.perf_counter(), data.copy()
        given = version if kind == MessageKind.WEIGHTS else None
        for learner in learners:
            self._post.answers[learner].put((Answer(self._number, given, sent, cause), copy))
        self.bytes_out += copy.nbytes * len(learners)


class ThreadLearner(LearnerEnd):
    """See `LearnerEnd`."""

    def __init__(self, post: Post, number: int, weights: Vector, places: Sequence[slice]) -> None:
        super().__init__(weights, places)
        self._post, self._number = post, number
        self._free = [Semaphore() for _ in places]
        self._copies = [NOTHING for _ in places]

    def push(self, server: int, version: int, gradient: Vector) -> None:
        """See `LearnerEnd.push`."""
        data = np.ascontiguousarray(gradient).view(np.uint8)
        self._free[server].acquire()  # until the server has done with the last
        if len(self._copies[server]) < len(data):
            self._copies[server] = np.empty(len(data), np.uint8)
        copy = self._copies[server][: len(data)]
        np.copyto(copy, data)
        message = _Message(MessageKind.GRADIENT, self._number, version, copy, self._free[server])
        self._post.pushes[server].put(message)

    def wait(self, seconds: float | None) -> Answer | None:
        """See `LearnerEnd.wait`."""
        try:
            answer, data = self._post.answers[self._number].get(timeout=seconds)
        except Empty:
            return None
        if answer.version is not None:
            np.copyto(self.part(answer.server), data)
        return answer

    def say(self, kind: int, text: str = "") -> None:
        """See `LearnerEnd.say`."""
        data = np.frombuffer(text.encode(), np.uint8)
        for pushes in self._post.pushes:
            pushes.put(_Message(kind, self._number, 0, data, Semaphore()))
