"""Memory that every rank of a node maps: anonymous files, opened through ``/proc``.

A memfd has no name, so nothing is left behind however its processes end, and a container's limit on
``/dev/shm`` does not apply. This module knows nothing of schedules. It also has the layout of the
control memory that the ranks of a plan share: progress flags and byte counts, as `plan_lines` in
native/src/plans.hpp lays them out.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unavailable
from collectives.execution.transport import Array

Bytes = NDArray[np.uint8]
HUGE_PAGE = 2 << 20
# A buffer from this size on is rounded up to whole huge pages: what ranks on few cores pay for
# refilling the TLB with small pages after every switch costs more than the memory is worth.
ROUNDED = 256 << 10
LINE = 128
"""Bytes between two words: prefetchers fetch cache lines in pairs."""
_GATES = 3


@dataclass(frozen=True)
class Segment:
    """A piece of shared memory, mapped here: ``array``; ``key`` tells its owner's apart."""

    key: int
    array: Bytes


def _mapped(fd: int, nbytes: int, fresh: bool) -> Bytes:
    """A file mapped in huge pages if granted; when it is ``fresh``, its pages are touched here."""
    from native import _core

    return np.frombuffer(memoryview(_core.Mapping(fd, nbytes, fresh)), np.uint8)


class Memory:
    """One rank's allocations, and the other ranks' that it has opened.

    A segment lives as long as an array that looks into it.
    """

    collective = False

    def __init__(self) -> None:
        self._own: dict[int, weakref.ref[Bytes]] = {}
        self._fds: dict[int, tuple[int, int]] = {}
        self._count = 0

    def allocate(self, nbytes: int) -> Segment:
        """Zeroed memory, touched here first, so that it lies near this rank.

        Raises Unavailable where the kernel gives none.
        """
        room = max(nbytes, 1) if nbytes < ROUNDED else -(-nbytes // HUGE_PAGE) * HUGE_PAGE
        try:
            fd = os.memfd_create("busbar", os.MFD_CLOEXEC)
            os.ftruncate(fd, room)
            array = _mapped(fd, room, True)
        except (AttributeError, OSError) as error:
            raise Unavailable(
                f"no shared memory of {nbytes} bytes ({error}); use --transport mpi"
            ) from None
        key, self._count = self._count, self._count + 1
        self._fds[key] = fd, room
        self._own[key] = weakref.ref(array)
        weakref.finalize(array, self._forget, key)
        return Segment(key, array)

    def _forget(self, key: int) -> None:
        fd, _ = self._fds.pop(key)
        del self._own[key]
        os.close(fd)

    def locate(self, array: NDArray[np.generic]) -> tuple[int, int]:
        """The segment that an array lies in, and its offset there.

        Raises Unavailable when the array is not in memory of this transport.
        """
        for key, reference in list(self._own.items()):
            segment = reference()
            if segment is not None:
                offset = int(array.ctypes.data) - int(segment.ctypes.data)
                if offset >= 0 and offset + array.nbytes <= segment.nbytes:
                    return key, offset
        raise Unavailable(
            "a buffer does not lie in memory that the shm transport allocated;"
            " take it from the transport's allocate()"
        )

    def own(self, key: int) -> Bytes:
        """A segment of this rank, while something else keeps it alive."""
        array = self._own[key]()
        if array is None:
            raise Unavailable(f"segment {key} is gone; keep the array that allocate() gave")
        return array

    def describe(self, key: int) -> dict[str, int]:
        """How another rank finds a segment: as JSON, for `attach`."""
        fd, size = self._fds[key]
        return {"pid": os.getpid(), "fd": fd, "nbytes": size}

    def attach(self, found: Mapping[str, int]) -> Bytes:
        """Map another rank's segment. Raises Unavailable where ``/proc`` does not let us."""
        path = f"/proc/{int(found['pid'])}/fd/{int(found['fd'])}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                return _mapped(fd, int(found["nbytes"]), False)
            finally:
                os.close(fd)
        except OSError as error:
            raise Unavailable(
                f"cannot map another rank's memory through {path} ({error.strerror});"
                " ranks of one node must see each other's processes; use --transport mpi"
            ) from None

    def trim(self) -> None:
        """Nothing: segments go by themselves."""

    def close(self) -> None:
        """Nothing: segments go with the arrays that look into them."""


class ByteCounts(NamedTuple):
    """Bytes that ranks have moved to and from each other's memory so far, as they counted them.

    ``loads[r, s]``: loaded by rank r from rank s's memory; ``stores[r, s]``: stored by r into s's.
    Each row is written by its rank alone.
    """

    loads: NDArray[np.uint64]
    stores: NDArray[np.uint64]

    def out(self, rank: int) -> int:
        """Bytes that left a rank's memory, or that the rank stored into others'."""
        return int(self.loads[:, rank].sum() + self.stores[rank].sum())

    def into(self, rank: int) -> int:
        """Bytes that came into a rank's memory, or that the rank loaded from others'."""
        return int(self.loads[rank].sum() + self.stores[:, rank].sum())


def _control_bytes(nranks: int) -> int:
    return ((1 + _GATES) * nranks + _GATES) * LINE


def _row_bytes(nranks: int) -> int:
    return -(-nranks * 8 // LINE) * LINE


def plan_bytes(nranks: int) -> int:
    """Bytes of a plan's lines."""
    return _control_bytes(nranks) + 2 * nranks * _row_bytes(nranks)


def traffic(lines: Array, nranks: int) -> ByteCounts:
    """The counts of a plan whose lines these are."""
    rows = lines[_control_bytes(nranks) : plan_bytes(nranks)].view(np.uint64)
    loads, stores = rows.reshape(2, nranks, -1)[:, :, :nranks]
    return ByteCounts(loads, stores)


def words(lines: Array) -> NDArray[np.uint64]:
    """The first word of every line of a control segment."""
    return lines[: len(lines) // LINE * LINE].view(np.uint64)[:: LINE // 8]
