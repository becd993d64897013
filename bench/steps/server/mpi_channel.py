"""Servers and learners as MPI ranks: point-to-point messages, received from any source.

A waiting rank sleeps between two probes. MPI's own waiting would keep a core busy for every rank,
and ranks with emulated compute share few cores.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.steps.server.endpoint import (
    HEADER_BYTES,
    Bytes,
    Channel,
    Header,
    Peers,
    pack_header,
    unpack_header,
)
from busbar.errors import RankFailure

_HEADER_TAG, _DATA_TAG = 1, 2
# Sleeps between two probes. A learner's sleeps grow up to the longest.
_PROBE_S, _LONGEST_S, _GROWTH = 100e-6, 550e-6, 1.2
# A transfer that has begun is tested at this interval.
_TRANSFER_S = 70e-6


class MpiChannel(Channel):
    """See `Channel`. The first ``servers`` ranks of the communicator serve, the others learn.

    Where MPI continues without a failed rank (ULFM), a learner's rank may be lost: Bland,
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
        """See `Channel.poll`."""
        until, nap = time.perf_counter() + seconds, _PROBE_S
        if not self._serves:
            self._check_servers(self._failed)
        while not self._probe():
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
        """See `Channel.read`."""
        data, rank = self._memory(nbytes, into), self._first + peer
        with self._noting_failures():
            _wait([self._comm.Irecv([data, self._mpi.BYTE], rank, _DATA_TAG)])
        return None if rank in self._failed else data

    def post(self, peers: Peers, kind: int, version: int, data: Bytes, cause: float) -> None:
        """See `Channel.post`."""
        data = data.copy()
        header = pack_header(kind, version, data.nbytes, cause)
        for rank in (self._first + peer for peer in peers):
            if rank not in self._failed:
                with self._noting_failures():
                    requests = self._send(rank, header, data)
                    self._pending += [(request, (header, data)) for request in requests]
        self._test_pending()

    def push(self, peer: int, kind: int, version: int, data: Bytes) -> None:
        """See `Channel.push`."""
        header = pack_header(kind, version, data.nbytes)
        with self._noting_failures():
            _wait(self._send(self._first + peer, header, data))

    def close(self) -> None:
        """See `Channel.close`."""
        while self._pending:
            self._test_pending()
            time.sleep(_TRANSFER_S)

    def _probe(self) -> bool:
        """Whether a header has come from any rank; its rank is then in ``_status``."""
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
        return True  # to a rank that has failed nothing more is sent

    @contextmanager
    def _noting_failures(self) -> Iterator[None]:
        """Note ranks that have failed in place of raising MPI's error.

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
