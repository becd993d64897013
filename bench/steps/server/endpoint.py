"""Messages between servers and learners, over channels between threads or MPI ranks.

A learner pushes gradients to every server. A server takes messages in the order of their arrival,
answers with weights, and never waits until a learner has received them. Times are those of
``time.perf_counter``, which processes of one host share.
"""

from __future__ import annotations

import struct
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Semaphore
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import RankFailure

Bytes = NDArray[np.uint8]
Peers = Sequence[int]
#: `Endpoint.receive` returns after this time without a message, in seconds.
TICK_S = 0.25
# `MergedChannel` sleeps for this time between two polls of its channels.
_POLL_S = 100e-6
# Kind, version, nbytes, sent and cause of a message; see `Message`.
_HEADER = struct.Struct("=qqqdd")
HEADER_BYTES = _HEADER.size
Header = tuple[int, int, int, float, float]
"""These fields. A plain tuple, since threads make one for each of some 10,000 messages a second."""
NO_BYTES: Bytes = np.empty(0, np.uint8)


class Kind:
    """Kinds of messages."""

    #: From a learner: a gradient; its measurements, as its last message; the error that ends it; a
    #: request to join.
    GRADIENT, BYE, FAILED, JOIN = 1, 2, 3, 4
    #: From a server: weights; the end of the run.
    WEIGHTS, STOP = 5, 6
    #: A process's request for the options of the run, and the server's reply.
    HELLO = 7
    #: From a learner that is a separate process: spans of its trace, before `BYE`.
    SPANS = 8


def pack_header(kind: int, version: int, nbytes: int, cause: float = 0.0) -> bytes:
    """Return the header of a message that is sent now; for the parameters see `Message`."""
    return _HEADER.pack(kind, version, nbytes, time.perf_counter(), cause)


def unpack_header(data: bytes | bytearray) -> Header:
    """Return the header that `pack_header` made."""
    return _HEADER.unpack(data)


class Channel(ABC):
    """Whole messages between this process and its peers, over one kind of connection.

    The peers of a server are the learners, those of a learner the servers, each by its number. A
    channel is used by one thread. ``idle``: seconds spent waiting for messages. ``looked``: when
    this process last found no message, or had received one. ``lost``: learners that have exited,
    each with the reason, until `Endpoint.receive` reports them. A learner cannot continue without a
    server: all methods raise RankFailure if a server has exited.
    """

    def __init__(self) -> None:
        self.idle = self.looked = 0.0
        self.lost: deque[tuple[int, str]] = deque()
        self._buffer = NO_BYTES

    @abstractmethod
    def poll(self, seconds: float) -> tuple[int, Header] | None:
        """Return the sender and the header of the earliest message.

        Returns None if no message arrives within ``seconds``, or as soon as a learner is lost.
        """

    @abstractmethod
    def read(self, peer: int, nbytes: int, into: Bytes | None) -> Bytes | None:
        """Receive the payload of the message whose header `poll` returned last.

        The result is ``into``, or without it memory that is valid until the next `poll`. Returns
        None if the peer is lost meanwhile.
        """

    @abstractmethod
    def post(self, peers: Peers, kind: int, version: int, data: Bytes, cause: float) -> None:
        """Begin to send a copy of ``data`` to each of the peers, without waiting for them.

        ``kind``: see `Kind`. ``version``, ``cause``: see `Message`; ``cause`` is 0 without a push.
        """

    def push(self, peer: int, kind: int, version: int, data: Bytes) -> None:
        """Send a message to a peer; the memory of ``data`` may be used again when this returns.

        ``kind`` and ``version``: as for `post`.
        """
        self.post((peer,), kind, version, data, 0.0)

    def close(self) -> None:  # noqa: B027
        """Wait until all messages have been sent, and close the connections."""

    def _memory(self, nbytes: int, into: Bytes | None) -> Bytes:
        """``into``, or without it memory of this channel that is reused for the next message."""
        if into is not None:
            return into
        if len(self._buffer) < nbytes:
            self._buffer = np.empty(nbytes, np.uint8)
        return self._buffer[:nbytes]


class MergedChannel(Channel):
    """A server's channel to MPI ranks and to processes that connect to a socket.

    So processes can join after a rank was lost. Learners from number ``first`` on are processes.
    """

    def __init__(self, ranks: Channel, processes: Channel, first: int) -> None:
        super().__init__()
        self._ranks, self._processes, self._first = ranks, processes, first
        ranks.lost = processes.lost = self.lost

    def poll(self, seconds: float) -> tuple[int, Header] | None:
        """The sender and header of the next message, or None; see `Channel.poll`."""
        until = time.perf_counter() + seconds
        while True:
            received = self._processes.poll(0.0) or self._ranks.poll(0.0)
            now = time.perf_counter()
            if received is not None or self.lost or now >= until:
                return received
            time.sleep(_POLL_S)
            self.idle += time.perf_counter() - now

    def read(self, peer: int, nbytes: int, into: Bytes | None) -> Bytes | None:
        """Receive the payload of the message that `poll` returned; see `Channel.read`."""
        channel = self._ranks if peer < self._first else self._processes
        return channel.read(peer, nbytes, into)

    def post(self, peers: Peers, kind: int, version: int, data: Bytes, cause: float) -> None:
        """Begin to send a copy of ``data`` to each of the peers, see `Channel.post`."""
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

    ``version``: of the weights that were sent, or from which a gradient was computed; for a `JOIN`
    the learner's number. ``sent``: when the message was sent. ``cause``: for weights, when the push
    was sent that made the server send them, perhaps another learner's push. ``looked``: see
    `Channel`. ``began``: when this process began to receive the message. ``data``: the payload,
    valid until the next message.
    """

    peer: int
    kind: int
    version: int
    sent: float
    cause: float
    looked: float
    began: float
    data: Bytes


class Endpoint:
    """Sends and receives the messages of a server or a learner, over any `Channel`.

    ``parts``: for a learner, the memory into which each server's weights are received.
    """

    def __init__(self, channel: Channel, parts: Sequence[NDArray[Any]] = ()) -> None:
        self.channel = channel
        self._parts = [part.view(np.uint8) for part in parts]
        self.bytes_in = self.bytes_out = 0

    def receive(self, seconds: float = TICK_S) -> Message | None:
        """Return the earliest message; None if there is none within ``seconds``.

        The loss of a learner is returned as a `Kind.FAILED` message with the reason.
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
                looked, channel.looked = channel.looked, time.perf_counter()
                return Message(peer, kind, version, sent, cause, looked, began, data)
        if not channel.lost:
            return None
        peer, reason = channel.lost.popleft()
        text = np.frombuffer(reason.encode(), np.uint8)
        return Message(peer, Kind.FAILED, 0, began, 0.0, began, began, text)

    def post(
        self,
        peers: Peers,
        kind: int,
        version: int = 0,
        data: NDArray[Any] = NO_BYTES,
        cause: float = 0.0,
    ) -> None:
        """Begin to send a copy of ``data`` to each of the peers. See `Message` for the fields."""
        self.channel.post(peers, kind, version, data.view(np.uint8), cause)
        self.bytes_out += data.nbytes * len(peers)

    def push(self, server: int, version: int, gradient: NDArray[Any]) -> None:
        """Send a gradient, whose memory may be used again when this returns."""
        data = np.ascontiguousarray(gradient).view(np.uint8)
        self.channel.push(server, Kind.GRADIENT, version, data)


# Sender, header, payload; for a push also a semaphore that the receiver releases after use.
_Mailbox = SimpleQueue[tuple[int, Header, Bytes, Semaphore | None]]


class Mailboxes:
    """The mailboxes of all servers and all learners, which all threads share."""

    def __init__(self, servers: int, learners: int) -> None:
        self.servers: list[_Mailbox] = [SimpleQueue() for _ in range(servers)]
        self.learners: list[_Mailbox] = [SimpleQueue() for _ in range(learners)]

    def server(self, number: int, failed: Callable[[], Iterable[int]] = tuple) -> ThreadChannel:
        """The channel of a server. ``failed``: see `ThreadChannel`."""
        return ThreadChannel(number, self.servers[number], self.learners, failed)

    def learner(self, number: int) -> ThreadChannel:
        """The channel of a learner."""
        return ThreadChannel(number, self.learners[number], self.servers)


class ThreadChannel(Channel):
    """A channel between servers and learners that are threads of one process; see `Channel`.

    ``number``: of this server or learner; ``peers``: their mailboxes. ``failed``: returns the
    numbers of peers whose threads an error has ended, perhaps before they sent a message.
    """

    def __init__(
        self,
        number: int,
        mailbox: _Mailbox,
        peers: Sequence[_Mailbox],
        failed: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        super().__init__()
        self._number, self._mailbox, self._peers = number, mailbox, peers
        self._failed, self._reported = failed, set[int]()
        self._data = NO_BYTES
        self._finished: Semaphore | None = None
        # For each peer: the copy that was pushed last, and a semaphore, free once it is not used.
        self._copies = [NO_BYTES for _ in peers]
        self._free = [Semaphore() for _ in peers]

    def poll(self, seconds: float) -> tuple[int, Header] | None:
        """The sender and header of the next message, or None; see `Channel.poll`."""
        if self._finished is not None:
            self._finished.release()
            self._finished = None
        before = time.perf_counter()
        try:
            peer, header, self._data, self._finished = self._mailbox.get(timeout=seconds)
        except Empty:
            self.looked = time.perf_counter()
            self.idle += self.looked - before
            new = set(self._failed()) - self._reported
            # The last messages of a peer, such as that it leaves, come before its end.
            if self._mailbox.empty():
                self._reported |= new
                self.lost += [(peer, "ended with an error") for peer in sorted(new)]
            return None
        if (sent := header[3]) > before:
            self.idle += sent - before
        return peer, header

    def read(self, peer: int, nbytes: int, into: Bytes | None) -> Bytes | None:
        """The payload of the message that `poll` returned: the sender's copy, or ``into``."""
        if into is None:
            return self._data
        np.copyto(into, self._data)
        return into

    def post(self, peers: Peers, kind: int, version: int, data: Bytes, cause: float) -> None:
        """Begin to send a copy of ``data`` to each of the peers, see `Channel.post`."""
        header = (kind, version, data.nbytes, time.perf_counter(), cause)
        copy = data.copy()
        for peer in peers:
            self._peers[peer].put((self._number, header, copy, None))

    def push(self, peer: int, kind: int, version: int, data: Bytes) -> None:
        """Send a message, but first wait until the peer has processed the push before.

        Otherwise a learner that does not wait for answers could queue any number of pushes. See
        `Channel.push`.
        """
        self._free[peer].acquire()
        if len(self._copies[peer]) < len(data):
            self._copies[peer] = np.empty(len(data), np.uint8)
        copy = self._copies[peer][: len(data)]
        np.copyto(copy, data)
        header = (kind, version, data.nbytes, time.perf_counter(), 0.0)
        self._peers[peer].put((self._number, header, copy, self._free[peer]))


_HEADER_TAG, _DATA_TAG = 1, 2
# Seconds of sleep between two probes: a learner's first, its longest, and the factor of growth.
_PROBE_S, _LONGEST_S, _GROWTH = 100e-6, 550e-6, 1.2
# A transfer that has begun is tested at this interval.
_TRANSFER_S = 70e-6


class MpiChannel(Channel):
    """A channel over MPI; see `Channel`. The first ``servers`` ranks are servers, others learners.

    If MPI can continue without a failed rank (ULFM), a learner's rank may be lost. See Bland,
    Bouteiller, Herault, Bosilca, Dongarra: Post-failure recovery of MPI communication capability
    (2013).
    """

    def __init__(self, comm: Any, mpi: Any, servers: int) -> None:
        super().__init__()
        self._comm, self._mpi, self._servers = comm, mpi, servers
        self._serves = comm.Get_rank() < servers
        self._first = servers if self._serves else 0  # the rank of peer 0
        self._status, self._header = mpi.Status(), bytearray(HEADER_BYTES)
        self._pending: list[tuple[Any, object]] = []  # requests, and the memory that they use
        self._failed = set[int]()

    def poll(self, seconds: float) -> tuple[int, Header] | None:
        """The sender and header of the next message, or None; see `Channel.poll`."""
        until, nap = time.perf_counter() + seconds, _PROBE_S
        if not self._serves:
            self._check_servers(self._failed)
        while not self._probe():
            self.looked = time.perf_counter()
            self._test_pending()
            now = time.perf_counter()
            if self.lost or now >= until:
                return None
            time.sleep(min(nap, until - now))
            self.idle += time.perf_counter() - now
            nap = nap if self._serves else min(_GROWTH * nap, _LONGEST_S)
        source = int(self._status.Get_source())
        self._comm.Recv([self._header, self._mpi.BYTE], source, _HEADER_TAG)
        return source - self._first, unpack_header(self._header)

    def read(self, peer: int, nbytes: int, into: Bytes | None) -> Bytes | None:
        """Receive the payload of the message that `poll` returned; see `Channel.read`."""
        data, rank = self._memory(nbytes, into), self._first + peer
        with self._noting_failures():
            _wait([self._comm.Irecv([data, self._mpi.BYTE], rank, _DATA_TAG)])
        return None if rank in self._failed else data

    def post(self, peers: Peers, kind: int, version: int, data: Bytes, cause: float) -> None:
        """Begin to send a copy of ``data`` to each of the peers, see `Channel.post`."""
        data = data.copy()
        header = pack_header(kind, version, data.nbytes, cause)
        for rank in (self._first + peer for peer in peers):
            if rank not in self._failed:
                with self._noting_failures():
                    requests = self._send(rank, header, data)
                    self._pending += [(request, (header, data)) for request in requests]
        self._test_pending()

    def push(self, peer: int, kind: int, version: int, data: Bytes) -> None:
        """Send a message; ``data`` may be used again afterwards, see `Channel.push`."""
        header = pack_header(kind, version, data.nbytes)
        with self._noting_failures():
            _wait(self._send(self._first + peer, header, data))

    def close(self) -> None:
        """See `Channel.close`."""
        while self._pending:
            self._test_pending()
            time.sleep(_TRANSFER_S)

    def _probe(self) -> bool:
        """True if a header has arrived from any rank; the rank is then in ``_status``."""
        with self._noting_failures():
            return bool(self._comm.Iprobe(self._mpi.ANY_SOURCE, _HEADER_TAG, self._status))
        return False

    def _send(self, rank: int, header: bytes, data: Bytes) -> list[Any]:
        """Begin to send a header and its payload; returns the requests."""
        requests = [self._comm.Isend([header, self._mpi.BYTE], rank, _HEADER_TAG)]
        if data.nbytes:
            requests.append(self._comm.Isend([data, self._mpi.BYTE], rank, _DATA_TAG))
        return requests

    def _test_pending(self) -> None:
        self._pending = [entry for entry in self._pending if not self._done(entry[0])]

    def _done(self, request: Any) -> bool:
        with self._noting_failures():
            return bool(request.Test())
        return True  # nothing more is sent to a rank that has failed

    @contextmanager
    def _noting_failures(self) -> Iterator[None]:
        """A context that records failed ranks instead of raising MPI's error.

        Raises RankFailure if a server has failed.
        """
        mpi = self._mpi
        try:
            yield
        except mpi.Exception as error:
            if error.Get_error_class() not in (mpi.ERR_PROC_FAILED, mpi.ERR_PROC_FAILED_PENDING):
                raise
            self._comm.Ack_failed()  # messages from any source can be received again
            group = self._comm.Get_failed()
            failed = set(group.Translate_ranks(group=self._comm.Get_group())) - self._failed
            self._failed |= failed
            if self._serves:
                learners = sorted(rank for rank in failed if rank >= self._servers)
                self.lost += [
                    (rank - self._servers, f"(rank {rank}) was lost") for rank in learners
                ]
            self._check_servers(failed)

    def _check_servers(self, failed: Collection[int]) -> None:
        """Raise RankFailure if a server is among these ranks, which have failed."""
        for rank in sorted(failed):
            if rank < self._servers:
                raise RankFailure(f"server {rank} is gone") from None


def _wait(requests: Sequence[Any]) -> None:
    """Return when all requests are complete."""
    nap = _TRANSFER_S
    for request in requests:
        while not request.Test():
            time.sleep(nap)
            nap = min(_GROWTH * nap, _LONGEST_S)
