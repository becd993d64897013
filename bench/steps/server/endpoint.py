"""Messages between servers and learners: the interface of a channel, and the endpoint over it.

A learner pushes gradients to every server. A server takes messages in the order of their arrival,
answers with weights, and never waits until a learner has received them. Times are those of
``time.perf_counter``, which processes of one host share.
"""

from __future__ import annotations

import struct
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import RankFailure

Bytes = NDArray[np.uint8]
Peers = Sequence[int]
#: `Endpoint.receive` returns after so many seconds without a message.
TICK_S = 0.25
# `MergedChannel` sleeps so long between two polls of its channels.
_POLL_S = 100e-6
# Kind, version, nbytes, sent and cause of a message; see `Message`.
_HEADER = struct.Struct("=qqqdd")
HEADER_BYTES = _HEADER.size
Header = tuple[int, int, int, float, float]
"""These fields. A plain tuple, since threads make one for each of some 10,000 messages a second."""
NO_BYTES: Bytes = np.empty(0, np.uint8)


class Kind:
    """Kinds of messages."""

    #: From a learner: a gradient; what it measured, as its last message; the error that ends it; a
    #: request to take part.
    GRADIENT, BYE, FAILED, JOIN = 1, 2, 3, 4
    #: From a server: weights; the end of the run.
    WEIGHTS, STOP = 5, 6
    #: A process's request for the options of the run, and the server's reply.
    HELLO = 7
    #: From a learner that is a separate process: spans of its trace, before `BYE`.
    SPANS = 8


def pack_header(kind: int, version: int, nbytes: int, cause: float = 0.0) -> bytes:
    """Return the header of a message that is sent now."""
    return _HEADER.pack(kind, version, nbytes, time.perf_counter(), cause)


def unpack_header(data: bytes | bytearray) -> Header:
    """Return the header that `pack_header` made."""
    return _HEADER.unpack(data)


class Channel(ABC):
    """Whole messages between this process and its peers, over one kind of connection.

    The peers of a server are the learners, those of a learner the servers, each by its number. A
    channel is used by one thread. ``idle``: seconds spent waiting for messages. ``lost``: learners
    that have exited, each with the reason, until `Endpoint.receive` reports them. A learner cannot
    continue without a server: all methods raise RankFailure if a server has exited.
    """

    def __init__(self) -> None:
        self.idle = 0.0
        self.lost: deque[tuple[int, str]] = deque()
        self._buffer = NO_BYTES

    @abstractmethod
    def poll(self, seconds: float) -> tuple[int, Header] | None:
        """Return the sender and the header of the earliest message.

        Returns None if no message comes within ``seconds``, or as soon as a learner is lost.
        """

    @abstractmethod
    def read(self, peer: int, nbytes: int, into: Bytes | None) -> Bytes | None:
        """Receive the payload behind the header that `poll` returned last.

        Into ``into``, or else into memory that is valid until the next `poll`. Returns None if the
        peer is lost meanwhile.
        """

    @abstractmethod
    def post(self, peers: Peers, kind: int, version: int, data: Bytes, cause: float) -> None:
        """Begin to send a copy of ``data`` to each of the peers; does not wait for them."""

    def push(self, peer: int, kind: int, version: int, data: Bytes) -> None:
        """Send ``data``, whose memory may be used again when this returns."""
        self.post((peer,), kind, version, data, 0.0)

    def close(self) -> None:  # noqa: B027
        """Wait until all messages have been sent, and close the connections."""

    def _memory(self, nbytes: int, into: Bytes | None) -> Bytes:
        """``into``, or memory of this channel, which it uses again for the next message."""
        if into is not None:
            return into
        if len(self._buffer) < nbytes:
            self._buffer = np.empty(nbytes, np.uint8)
        return self._buffer[:nbytes]


class MergedChannel(Channel):
    """A server's channel to MPI ranks and to processes that connect to a socket.

    It lets processes join after a rank was lost. Learners from number ``first`` on are processes.
    """

    def __init__(self, ranks: Channel, processes: Channel, first: int) -> None:
        super().__init__()
        self._ranks, self._processes, self._first = ranks, processes, first
        ranks.lost = processes.lost = self.lost

    def poll(self, seconds: float) -> tuple[int, Header] | None:
        """See `Channel.poll`."""
        until = time.perf_counter() + seconds
        while True:
            received = self._processes.poll(0.0) or self._ranks.poll(0.0)
            now = time.perf_counter()
            if received is not None or self.lost or now >= until:
                return received
            time.sleep(_POLL_S)
            self.idle += time.perf_counter() - now

    def read(self, peer: int, nbytes: int, into: Bytes | None) -> Bytes | None:
        """See `Channel.read`."""
        channel = self._ranks if peer < self._first else self._processes
        return channel.read(peer, nbytes, into)

    def post(self, peers: Peers, kind: int, version: int, data: Bytes, cause: float) -> None:
        """See `Channel.post`."""
        ranks = [peer for peer in peers if peer < self._first]
        processes = [peer for peer in peers if peer >= self._first]
        if ranks:
            self._ranks.post(ranks, kind, version, data, cause)
        if processes:
            self._processes.post(processes, kind, version, data, cause)

    def close(self) -> None:
        """See `Channel.close`."""
        self._processes.close()
        self._ranks.close()


class Message(NamedTuple):
    """A message that was received.

    ``version``: of the weights that were sent, or from which a gradient was computed; of a `JOIN`,
    the learner's number. ``sent``: when the message was sent. ``cause``: when the push was sent
    that made a server send these weights, which may be another learner's push. ``began``: when this
    process began to receive the message. ``data``: its payload, valid until the next message.
    """

    peer: int
    kind: int
    version: int
    sent: float
    cause: float
    began: float
    data: Bytes


class Endpoint:
    """Where a server or a learner sends and receives messages, over any `Channel`.

    ``parts``: of a learner, the memory for the weights of each server. They are received in place.
    """

    def __init__(self, channel: Channel, parts: Sequence[NDArray[Any]] = ()) -> None:
        self.channel = channel
        self._parts = [part.view(np.uint8) for part in parts]
        self.bytes_in = self.bytes_out = 0

    def receive(self, seconds: float = TICK_S) -> Message | None:
        """Return the earliest message; None if there is none within ``seconds``.

        A learner that was lost is a `Kind.FAILED` message with the reason, as is a learner's error.
        """
        channel = self.channel
        received = None if channel.lost else channel.poll(seconds)
        began = time.perf_counter()
        if received is not None:
            peer, (kind, version, nbytes, sent, cause) = received
            into = self._parts[peer] if kind == Kind.WEIGHTS and self._parts else None
            if into is not None and len(into) != nbytes:
                raise RankFailure(f"server {peer} sent {nbytes} bytes, not {len(into)}")
            data = channel.read(peer, nbytes, into) if nbytes else NO_BYTES
            if data is not None:
                self.bytes_in += nbytes
                return Message(peer, kind, version, sent, cause, began, data)
        if not channel.lost:
            return None
        peer, reason = channel.lost.popleft()
        text = np.frombuffer(reason.encode(), np.uint8)
        return Message(peer, Kind.FAILED, 0, began, 0.0, began, text)

    def post(
        self,
        peers: Peers,
        kind: int,
        version: int = 0,
        data: NDArray[Any] = NO_BYTES,
        cause: float = 0.0,
    ) -> None:
        """Begin to send a copy of ``data`` to each of the peers. See `Message` for the others."""
        self.channel.post(peers, kind, version, data.view(np.uint8), cause)
        self.bytes_out += data.nbytes * len(peers)

    def push(self, server: int, version: int, gradient: NDArray[Any]) -> None:
        """Send a gradient, whose memory may be used again when this returns."""
        data = np.ascontiguousarray(gradient).view(np.uint8)
        self.channel.push(server, Kind.GRADIENT, version, data)
