"""Servers and learners as MPI ranks: point to point, with any source at the server.

A waiting rank sleeps between two probes. MPI's own waiting would keep a core busy for every rank,
and ranks with emulated compute share few cores.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.steps.server.ends import (
    HEADER,
    NOTHING,
    Answer,
    Arrival,
    LearnerEnd,
    MessageHeader,
    MessageKind,
    ServerEnd,
    header,
)
from bench.steps.server.hooks import Vector
from busbar.errors import RankFailure

_HEAD, _DATA = 1, 2
# A server, and a learner, sleeps so long between two probes; a learner's sleep grows as it waits.
_SERVER_S = 100e-6
_LEARNER_S, _LONGEST_S = 100e-6, 550e-6
# A transfer that has begun is tested at this interval.
_TRANSFER_S = 70e-6


class _Ranks:
    """Messages between ranks of a communicator."""

    def __init__(self, comm: Any, mpi: Any) -> None:
        self.comm, self.mpi = comm, mpi
        self._status = mpi.Status()
        self._head = bytearray(HEADER.size)
        #: Ranks that are gone, where MPI goes on without them; `fresh`: those not yet handled.
        self.lost = set[int]()
        self.fresh: deque[int] = deque()

    def look(self) -> tuple[int, MessageHeader] | None:
        """The rank and the header of a message that has come from any source."""
        found = False
        with self.noticing():
            found = self.comm.Iprobe(self.mpi.ANY_SOURCE, _HEAD, self._status)
        if not found:
            return None
        source = int(self._status.Get_source())
        self.comm.Recv([self._head, self.mpi.BYTE], source, _HEAD)
        return source, MessageHeader(*HEADER.unpack(self._head))

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """Inside, an error of MPI for failed processes (ULFM) is noted, and not raised.

        Bland, Bouteiller, Herault, Bosilca, Dongarra: Post-failure recovery of MPI communication
        capability (2013).
        """
        try:
            yield
        except self.mpi.Exception as error:
            mpi = self.mpi
            if error.Get_error_class() not in (mpi.ERR_PROC_FAILED, mpi.ERR_PROC_FAILED_PENDING):
                raise
            self.comm.Ack_failed()  # any source may be received from again
            failed = self.comm.Get_failed()
            gone = set(failed.Translate_ranks(group=self.comm.Get_group()))
            self.fresh += sorted(gone - self.lost)
            self.lost |= gone

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
        self._buffer = NOTHING

    def receive(self, seconds: float) -> Arrival | None:
        """See `ServerEnd.receive`."""
        until, ranks = time.perf_counter() + seconds, self._ranks
        while (found := ranks.look()) is None:
            self._flush()
            now = time.perf_counter()
            if ranks.fresh:
                return self._gone(ranks.fresh.popleft(), now)
            if now >= until:
                return None
            time.sleep(_SERVER_S)
            self.idle += time.perf_counter() - now
        began = time.perf_counter()
        rank, (kind, version, nbytes, sent, _) = found
        if len(self._buffer) < nbytes:
            self._buffer = np.empty(nbytes, np.uint8)
        data: NDArray[np.uint8] = self._buffer[:nbytes]
        if nbytes:
            with ranks.noticing():
                ranks.take(rank, data)
            if rank in ranks.lost:  # on the way
                return self.receive(0.0)
        self.bytes_in += nbytes
        return Arrival(kind, rank - self._servers, version, sent, began, data)

    def _gone(self, rank: int, now: float) -> Arrival:
        if rank < self._servers:
            raise RankFailure(f"server {rank} is gone")
        why = np.frombuffer(f"(rank {rank}) was lost".encode(), np.uint8)
        return Arrival(MessageKind.FAILED, rank - self._servers, 0, now, now, why)

    def close(self) -> None:
        """See `ServerEnd.close`."""
        while self._pending:
            self._flush()
            time.sleep(_TRANSFER_S)

    def put(
        self, learners: Sequence[int], kind: int, version: int, data: Vector, cause: float
    ) -> None:
        """See `ServerEnd.put`."""
        data = data.copy()
        head = header(kind, version, data.nbytes, cause)
        for learner in learners:
            if self._servers + learner in self._ranks.lost:
                continue
            with self._ranks.noticing():
                requests = self._ranks.give(self._servers + learner, head, data)
                self._pending += [(request, (head, data)) for request in requests]
        self.bytes_out += data.nbytes * len(learners)
        self._flush()

    def _flush(self) -> None:
        self._pending = [one for one in self._pending if not self._done(one[0])]

    def _done(self, request: Any) -> bool:
        done = True  # of who is gone nothing more comes
        with self._ranks.noticing():
            done = request.Test()
        return bool(done)


class MpiLearner(LearnerEnd):
    """See `LearnerEnd`."""

    def __init__(self, comm: Any, mpi: Any, weights: Vector, places: Sequence[slice]) -> None:
        super().__init__(weights, places)
        self._ranks = _Ranks(comm, mpi)

    def push(self, server: int, version: int, gradient: Vector) -> None:
        """See `LearnerEnd.push`."""
        data = np.ascontiguousarray(gradient)
        head = header(MessageKind.GRADIENT, version, data.nbytes)
        wait(self._ranks.give(server, head, data))

    def wait(self, seconds: float | None) -> Answer | None:
        """See `LearnerEnd.wait`."""
        until = None if seconds is None else time.perf_counter() + seconds
        nap = _LEARNER_S
        while (found := self._ranks.look()) is None:
            self._mourn()
            rest = nap if until is None else until - time.perf_counter()
            if rest <= 0:
                return None
            time.sleep(min(nap, rest))
            nap = min(1.2 * nap, _LONGEST_S)
        server, (kind, version, nbytes, sent, cause) = found
        if kind == MessageKind.STOP:
            return Answer(server, None, sent, cause)
        if nbytes:
            self._ranks.take(server, self.part(server))
        return Answer(server, version, sent, cause)

    def _mourn(self) -> None:
        """Go on without other learners; without a server it is over."""
        while self._ranks.fresh:
            rank = self._ranks.fresh.popleft()
            if rank < len(self.places):
                raise RankFailure(f"server {rank} is gone")

    def say(self, kind: int, text: str = "") -> None:
        """See `LearnerEnd.say`."""
        data = np.frombuffer(text.encode(), np.uint8)
        head = header(kind, 0, data.nbytes)
        for server in range(len(self.places)):
            wait(self._ranks.give(server, head, data))
