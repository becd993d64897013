"""Servers and learners as MPI ranks: point to point, with any source at the server.

A waiting rank sleeps between two probes. MPI's own waiting would keep a core busy for every rank,
and ranks with emulated compute share few cores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.steps.server.ends import (
    HEADER,
    Answer,
    Arrival,
    LearnerEnd,
    MessageKind,
    ServerEnd,
    headed,
    header,
)
from bench.steps.server.hooks import Vector

_HEAD, _DATA = 1, 2
# How long a server sleeps between two looks, and a learner: the longer, the longer it waits.
_SERVER_S = 50e-6
_LEARNER_S, _LONGEST_S = 50e-6, 500e-6
# A transfer that has begun is looked at so often.
_TRANSFER_S = 20e-6


class _Ranks:
    """Messages between ranks of a communicator."""

    def __init__(self, comm: Any, mpi: Any) -> None:
        self.comm, self.mpi = comm, mpi
        self._status = mpi.Status()
        self._head = bytearray(HEADER.size)

    def look(self) -> tuple[int, tuple[int, int, int, float]] | None:
        """The rank and the header of a message that has come from any source."""
        if not self.comm.Iprobe(self.mpi.ANY_SOURCE, _HEAD, self._status):
            return None
        source = int(self._status.Get_source())
        self.comm.Recv([self._head, self.mpi.BYTE], source, _HEAD)
        return source, headed(self._head)

    def take(self, source: int, data: Vector) -> None:
        """Receive what follows a header."""
        wait([self.comm.Irecv([data.view(np.uint8), self.mpi.BYTE], source, _DATA)])

    def give(self, rank: int, head: bytes, data: Vector) -> list[Any]:
        """Begin to send a header and what follows it; gives the requests."""
        sent = [self.comm.Isend([head, self.mpi.BYTE], rank, _HEAD)]
        if data.nbytes:
            sent.append(self.comm.Isend([data.view(np.uint8), self.mpi.BYTE], rank, _DATA))
        return sent


def wait(requests: Sequence[Any], nap: float = _TRANSFER_S) -> None:
    """Return when all are done."""
    for request in requests:
        while not request.Test():
            time.sleep(nap)
            nap = min(1.2 * nap, _LONGEST_S)


class MpiServer(ServerEnd):
    """See `ServerEnd`. Rank ``servers + n`` of the communicator is learner n."""

    def __init__(self, comm: Any, mpi: Any, servers: int) -> None:
        super().__init__()
        self._ranks, self._servers = _Ranks(comm, mpi), servers
        self._pending: list[tuple[Any, object]] = []
        self._buffer = np.empty(0, np.uint8)

    def receive(self, seconds: float) -> Arrival | None:
        """See `ServerEnd.receive`."""
        until = time.perf_counter() + seconds
        while (found := self._ranks.look()) is None:
            self._flush()
            now = time.perf_counter()
            if now >= until:
                return None
            time.sleep(_SERVER_S)
            self.idle += time.perf_counter() - now
        began = time.perf_counter()
        rank, (kind, version, nbytes, sent) = found
        if len(self._buffer) < nbytes:
            self._buffer = np.empty(nbytes, np.uint8)
        data: NDArray[np.uint8] = self._buffer[:nbytes]
        if nbytes:
            self._ranks.take(rank, data)
        self.messages_in += 1
        self.bytes_in += nbytes
        return Arrival(kind, rank - self._servers, version, sent, began, data)

    def send(self, learners: Sequence[int], version: int, weights: Vector) -> None:
        """See `ServerEnd.send`."""
        self._send(learners, MessageKind.WEIGHTS, version, weights.copy())

    def stop(self, learners: Sequence[int]) -> None:
        """See `ServerEnd.stop`."""
        self._send(learners, MessageKind.STOP, 0, np.empty(0, np.uint8))

    def close(self) -> None:
        """See `ServerEnd.close`."""
        wait([request for request, _ in self._pending])

    def _send(self, learners: Sequence[int], kind: int, version: int, data: Vector) -> None:
        head = header(kind, version, data.nbytes, time.perf_counter())
        for learner in learners:
            requests = self._ranks.give(self._servers + learner, head, data)
            self._pending += [(request, (head, data)) for request in requests]
        self.messages_out += len(learners)
        self.bytes_out += data.nbytes * len(learners)
        self._flush()

    def _flush(self) -> None:
        self._pending = [one for one in self._pending if not one[0].Test()]


class MpiLearner(LearnerEnd):
    """See `LearnerEnd`."""

    def __init__(self, comm: Any, mpi: Any, weights: Vector, places: Sequence[slice]) -> None:
        """``weights``: where the servers' parts of the weights are put, at their places."""
        super().__init__()
        self._ranks, self._weights, self._places = _Ranks(comm, mpi), weights, places

    def push(self, server: int, version: int, gradient: Vector) -> None:
        """See `LearnerEnd.push`."""
        data = np.ascontiguousarray(gradient)
        head = header(MessageKind.GRADIENT, version, data.nbytes, time.perf_counter())
        wait(self._ranks.give(server, head, data))
        self.bytes_out += data.nbytes

    def wait(self, seconds: float | None) -> Answer | None:
        """See `LearnerEnd.wait`."""
        until = None if seconds is None else time.perf_counter() + seconds
        nap = _LEARNER_S
        while (found := self._ranks.look()) is None:
            rest = nap if until is None else until - time.perf_counter()
            if rest <= 0:
                return None
            time.sleep(min(nap, rest))
            nap = min(1.2 * nap, _LONGEST_S)
        server, (kind, version, nbytes, sent) = found
        if kind == MessageKind.STOP:
            return Answer(server, None, sent)
        part = self._weights[self._places[server]]
        if nbytes:
            self._ranks.take(server, part)
        return Answer(server, version, sent)

    def say(self, kind: int, text: str = "") -> None:
        """See `LearnerEnd.say`."""
        data = np.frombuffer(text.encode(), np.uint8)
        head = header(kind, 0, data.nbytes, time.perf_counter())
        for server in range(len(self._places)):
            wait(self._ranks.give(server, head, data))
