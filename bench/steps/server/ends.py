"""The interface between a server and its learners, which every kind of messages implements.

A learner's push is a header and a gradient; a server's answer is a header and weights. A server
takes pushes in the order of their arrival, and never waits for a learner to take its answer. Times
are those of ``time.perf_counter``, which processes of one host share.
"""

from __future__ import annotations

import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.steps.server.hooks import Vector

#: A message's first bytes: its `MessageKind`, a version, the length of what follows, when it was
#: sent, and when the push began that an answer follows.
HEADER = struct.Struct("=qqqdd")


class MessageKind:
    """Kinds of messages."""

    #: From a learner: a gradient; that it leaves, with what it measured; why it fails; that it
    #: joins.
    GRADIENT, BYE, FAILED, JOIN = 1, 2, 3, 4
    #: From a server: weights; the end of the run.
    WEIGHTS, STOP = 5, 6
    #: A process's question about the run, and a server's answer.
    HELLO = 7
    #: From a learner that is a process: spans of its trace, before `BYE`.
    SPANS = 8


class MessageHeader(NamedTuple):
    """The fields of a header; see `HEADER`."""

    kind: int
    version: int
    nbytes: int
    sent: float
    cause: float


def header(kind: int, version: int, nbytes: int, cause: float = 0.0) -> bytes:
    """The bytes of the header of a message that is sent now."""
    return HEADER.pack(kind, version, nbytes, time.perf_counter(), cause)


class Arrival(NamedTuple):
    """A message at a server. ``began``: when the server took it; ``data``: valid until the next."""

    kind: int
    learner: int
    version: int
    sent: float
    began: float
    data: NDArray[np.uint8]


class Answer(NamedTuple):
    """A server's answer: its number, the version of the weights in place, and the time of sending.

    ``version`` is None where all is over. ``cause``: when the push began that the answer follows,
    which may be another learner's.
    """

    server: int
    version: int | None
    sent: float
    cause: float


#: The data of a message that has none.
NOTHING: NDArray[np.uint8] = np.empty(0, np.uint8)


class ServerEnd(ABC):
    """A server's end."""

    def __init__(self) -> None:
        #: Seconds without anything to do.
        self.idle = 0.0
        self.bytes_in = self.bytes_out = 0

    @abstractmethod
    def receive(self, seconds: float) -> Arrival | None:
        """The earliest message; None where none comes in so many seconds."""

    def send(self, learners: Sequence[int], version: int, weights: Vector, cause: float) -> None:
        """Answer learners with the weights as they are now; does not wait for them.

        ``cause``: see `Answer`.
        """
        self.put(learners, MessageKind.WEIGHTS, version, weights, cause)

    def stop(self, learners: Sequence[int]) -> None:
        """Tell learners that all is over."""
        self.put(learners, MessageKind.STOP, 0, NOTHING, 0.0)

    @abstractmethod
    def put(
        self, learners: Sequence[int], kind: int, version: int, data: Vector, cause: float
    ) -> None:
        """Begin to send learners a message of a kind with a copy of ``data``."""

    def close(self) -> None:  # noqa: B027
        """Wait until all that was sent has arrived, and free what was taken."""


class LearnerEnd(ABC):
    """A learner's end: to all servers.

    ``weights``: where the servers' parts of the weights are put, at their ``places``.
    """

    def __init__(self, weights: Vector, places: Sequence[slice]) -> None:
        self.weights, self.places = weights, places

    def part(self, server: int) -> Vector:
        """A server's part of the weights."""
        return self.weights[self.places[server]]

    @abstractmethod
    def push(self, server: int, version: int, gradient: Vector) -> None:
        """Send a gradient; its memory may be used again when this returns."""

    @abstractmethod
    def wait(self, seconds: float | None) -> Answer | None:
        """The next answer, whose weights are in place then; None where none comes in time."""

    @abstractmethod
    def say(self, kind: int, text: str = "") -> None:
        """Tell all servers something."""

    def close(self) -> None:  # noqa: B027
        """Free what was taken."""
