"""Servers and learners as threads of one process: a message is a copy in a queue."""

from __future__ import annotations

import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Semaphore

import numpy as np

from bench.steps.server.endpoint import NO_BYTES, Bytes, Channel, Header, Peers

# Sender, header and payload; of a push also what the receiver releases once it has finished.
_Mailbox = SimpleQueue[tuple[int, Header, Bytes, Semaphore | None]]


class Mailboxes:
    """The mailboxes of all servers and all learners, which all threads share."""

    def __init__(self, servers: int, learners: int) -> None:
        self.servers: list[_Mailbox] = [SimpleQueue() for _ in range(servers)]
        self.learners: list[_Mailbox] = [SimpleQueue() for _ in range(learners)]

    def server(self, number: int) -> ThreadChannel:
        """The channel of a server."""
        return ThreadChannel(number, self.servers[number], self.learners)

    def learner(self, number: int) -> ThreadChannel:
        """The channel of a learner."""
        return ThreadChannel(number, self.learners[number], self.servers)


class ThreadChannel(Channel):
    """See `Channel`. ``number``: of this server or learner; ``peers``: their mailboxes."""

    def __init__(self, number: int, mailbox: _Mailbox, peers: Sequence[_Mailbox]) -> None:
        super().__init__()
        self._number, self._mailbox, self._peers = number, mailbox, peers
        self._data = NO_BYTES
        self._finished: Semaphore | None = None
        # For each peer: the copy that was pushed last, and whether the peer has finished with it.
        self._copies = [NO_BYTES for _ in peers]
        self._free = [Semaphore() for _ in peers]

    def poll(self, seconds: float) -> tuple[int, Header] | None:
        """See `Channel.poll`."""
        if self._finished is not None:
            self._finished.release()
            self._finished = None
        before = time.perf_counter()
        try:
            peer, header, self._data, self._finished = self._mailbox.get(timeout=seconds)
        except Empty:
            self.idle += time.perf_counter() - before
            return None
        if (sent := header[3]) > before:
            self.idle += sent - before
        return peer, header

    def read(self, peer: int, nbytes: int, into: Bytes | None) -> Bytes | None:
        """See `Channel.read`. The sender's copy itself, unless ``into`` is given."""
        if into is None:
            return self._data
        np.copyto(into, self._data)
        return into

    def post(self, peers: Peers, kind: int, version: int, data: Bytes, cause: float) -> None:
        """See `Channel.post`."""
        header = (kind, version, data.nbytes, time.perf_counter(), cause)
        copy = data.copy()
        for peer in peers:
            self._peers[peer].put((self._number, header, copy, None))

    def push(self, peer: int, kind: int, version: int, data: Bytes) -> None:
        """See `Channel.push`. Waits until the peer has finished with the push before.

        Otherwise a learner that does not wait for answers could queue pushes without bound.
        """
        self._free[peer].acquire()
        if len(self._copies[peer]) < len(data):
            self._copies[peer] = np.empty(len(data), np.uint8)
        copy = self._copies[peer][: len(data)]
        np.copyto(copy, data)
        header = (kind, version, data.nbytes, time.perf_counter(), 0.0)
        self._peers[peer].put((self._number, header, copy, self._free[peer]))
