# ruff: noqa: D102, N802 -- the names are mpi4py's
"""A communicator among threads of one process, with what a channel of servers needs of MPI's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from threading import Lock
from typing import Any


class ProcessFailed(Exception):
    """MPI's error, of a process that failed."""

    def Get_error_class(self) -> int:
        return MPI.ERR_PROC_FAILED


class _Status:
    source = -1

    def Get_source(self) -> int:
        return self.source


class _Request:
    """Complete at once, or as soon as a message that is awaited has come."""

    def __init__(self, test: Any = lambda: True) -> None:
        self.Test = test


class _Group:
    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = list(ranks)

    def Translate_ranks(self, group: _Group) -> list[int]:
        return self._ranks


class MPI:
    """The module."""

    ANY_SOURCE, BYTE = -1, object()
    ERR_PROC_FAILED, ERR_PROC_FAILED_PENDING = 1, 2
    Exception, Status = ProcessFailed, _Status


class _World:
    def __init__(self, ranks: int) -> None:
        self.lock, self.failed = Lock(), set[int]()
        # For each receiver, what was sent: the source, the tag and the bytes.
        self.sent: list[deque[tuple[int, int, bytes]]] = [deque() for _ in range(ranks)]


class Comm:
    """One rank's. `fail` ends the rank: the others' next calls raise until they have noted it."""

    def __init__(self, world: _World, rank: int) -> None:
        self._world, self._rank = world, rank
        self._noted = set[int]()

    @classmethod
    def of(cls, ranks: int) -> list[Comm]:
        """The communicators of so many ranks."""
        world = _World(ranks)
        return [cls(world, rank) for rank in range(ranks)]

    def fail(self) -> None:
        self._world.failed.add(self._rank)

    def Get_rank(self) -> int:
        return self._rank

    def Get_group(self) -> _Group:
        return _Group(range(len(self._world.sent)))

    def Get_failed(self) -> _Group:
        return _Group(sorted(self._world.failed))

    def Ack_failed(self) -> None:
        self._noted |= self._world.failed

    def _take(self, source: int, tag: int, *, remove: bool) -> tuple[int, int, bytes] | None:
        with self._world.lock:
            mine = self._world.sent[self._rank]
            for message in mine:
                if message[1] == tag and source in (MPI.ANY_SOURCE, message[0]):
                    if remove:
                        mine.remove(message)
                    return message
        return None

    def Iprobe(self, source: int, tag: int, status: _Status) -> bool:
        if self._world.failed - self._noted:
            raise ProcessFailed
        message = self._take(source, tag, remove=False)
        if message is not None:
            status.source = message[0]
        return message is not None

    def Recv(self, into: list[Any], source: int, tag: int) -> None:
        message = self._take(source, tag, remove=True)
        assert message is not None, "nothing to receive"
        memoryview(into[0])[:] = message[2]

    def Irecv(self, into: list[Any], source: int, tag: int) -> _Request:
        def test() -> bool:
            message = self._take(source, tag, remove=True)
            if message is None and source in self._world.failed:
                raise ProcessFailed
            if message is not None:
                memoryview(into[0])[:] = message[2]
            return message is not None

        return _Request(test)

    def Isend(self, data: list[Any], rank: int, tag: int) -> _Request:
        if rank in self._world.failed:
            raise ProcessFailed
        with self._world.lock:
            self._world.sent[rank].append((self._rank, tag, bytes(data[0])))
        return _Request()
