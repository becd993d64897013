"""Memory that every rank of a node maps: anonymous files, opened through ``/proc``.

A memfd has no name, so nothing is left behind however its processes end, and a container's limit on
``/dev/shm`` does not apply. This module does not depend on schedules. It also has the layout of the
control memory that the ranks of a plan share: progress flags and byte counts, as `plan_lines` in
native/src/plans.hpp lays them out.
"""

from __future__ import annotations

import errno
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
# Larger buffers are rounded up to whole huge pages: if ranks share few cores, refilling the TLB
# with small pages after every switch costs more than the memory is worth.
ROUNDED = 256 << 10
LINE = 128
"""Bytes between two words: prefetchers fetch cache lines in pairs."""
_GATES = 3


@dataclass(frozen=True)
class Segment:
    """A piece of shared memory, mapped here as ``array``; ``key`` is unique among its owner's."""

    key: int
    array: Bytes


def _mapped(fd: int, nbytes: int, fresh: bool) -> Bytes:
    """Map a file, in huge pages if possible. If it is ``fresh``, write its pages here first."""
    from native import _core

    return np.frombuffer(memoryview(_core.Mapping(fd, nbytes, fresh)), np.uint8)


class Memory:
    """One rank's allocations, and its mappings of other ranks' allocations.

    A segment lives as long as an array that views it.
    """

    collective = False

    def __init__(self) -> None:
        self._own: dict[int, weakref.ref[Bytes]] = {}
        self._fds: dict[int, tuple[int, int]] = {}
        self._count = 0

    def allocate(self, nbytes: int) -> Segment:
        """Allocate zeroed memory; this rank writes it first, so that it lies on its NUMA node.

        Raises Unavailable if the kernel gives none.
        """
        room = max(nbytes, 1) if nbytes < ROUNDED else -(-nbytes // HUGE_PAGE) * HUGE_PAGE
        fd = -1
        try:
            fd = os.memfd_create("busbar", os.MFD_CLOEXEC)
            os.ftruncate(fd, room)
            array = _mapped(fd, room, True)
        except (AttributeError, OSError) as error:
            if fd >= 0:
                os.close(fd)
            raise Unavailable(
                f"no shared memory of {nbytes} bytes ({error}); use --transport mpi"
            ) from None
        key, self._count = self._count, self._count + 1
        self._fds[key] = fd, room
        self._own[key] = weakref.ref(array)
        weakref.finalize(array, self._forget, key)
        return Segment(key, array)

    def _forget(self, key: int) -> None:
        self.close_file(key)
        del self._own[key]

    def close_file(self, key: int) -> None:
        """Close a segment's file, so that no more ranks can attach it; mappings of it stay.

        A process may have 1,024 open files, and some runs have more plans.
        """
        fd, _ = self._fds.pop(key, (-1, 0))
        if fd >= 0:
            os.close(fd)

    def locate(self, array: NDArray[np.generic]) -> tuple[int, int]:
        """The key of the segment that contains an array, and the array's offset in bytes.

        Raises Unavailable if the array is not in memory of this transport.
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
        """A segment of this rank. Raises Unavailable if no array keeps it alive."""
        array = self._own[key]()
        if array is None:
            raise Unavailable(f"segment {key} is gone; keep the array that allocate() gave")
        return array

    def describe(self, key: int) -> dict[str, int]:
        """A description of a segment as JSON, with which another rank can `attach` it."""
        fd, size = self._fds[key]
        about = os.fstat(fd)
        which = {"device": about.st_dev, "inode": about.st_ino}
        return {"pid": os.getpid(), "fd": fd, "nbytes": size, **which}

    def attach(self, where: Mapping[str, int]) -> Bytes:
        """Map another rank's segment.

        Raises Unavailable if ``/proc`` does not permit it, or has another process by that number:
        one in the same container as this rank, if the other rank is in another container.
        """
        path = f"/proc/{int(where['pid'])}/fd/{int(where['fd'])}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                about = os.fstat(fd)
                if (about.st_dev, about.st_ino) != (where["device"], where["inode"]):
                    raise OSError(errno.ESRCH, "it is a file of another process")
                return _mapped(fd, int(where["nbytes"]), False)
            finally:
                os.close(fd)
        except OSError as error:
            raise Unavailable(
                f"cannot map another rank's memory through {path} ({error.strerror});"
                " ranks of one node must see each other's processes; use --transport mpi"
            ) from None

    def trim(self) -> None:
        """Do nothing: segments are freed with their last array."""

    def close(self) -> None:
        """Do nothing: segments are freed with their last array."""


class ByteCounts(NamedTuple):
    """Bytes that ranks have moved to and from each other's memory so far, as counted at run time.

    ``loads[r, s]``: loaded by rank r from rank s's memory; ``stores[r, s]``: stored by r into s's.
    Each row is written by its rank alone.
    """

    loads: NDArray[np.uint64]
    stores: NDArray[np.uint64]

    def out(self, rank: int) -> int:
        """Bytes that left a rank's memory, or that the rank stored into other memory."""
        return int(self.loads[:, rank].sum() + self.stores[rank].sum())

    def into(self, rank: int) -> int:
        """Bytes that came into a rank's memory, or that the rank loaded from other memory."""
        return int(self.loads[rank].sum() + self.stores[:, rank].sum())


def _control_bytes(nranks: int) -> int:
    return ((1 + _GATES) * nranks + _GATES) * LINE


def _row_bytes(nranks: int) -> int:
    return -(-nranks * 8 // LINE) * LINE


def plan_bytes(nranks: int) -> int:
    """Bytes of a plan's control lines."""
    return _control_bytes(nranks) + 2 * nranks * _row_bytes(nranks)


def traffic(lines: Array, nranks: int) -> ByteCounts:
    """The byte counts in a plan's control lines."""
    rows = lines[_control_bytes(nranks) : plan_bytes(nranks)].view(np.uint64)
    loads, stores = rows.reshape(2, nranks, -1)[:, :, :nranks]
    return ByteCounts(loads, stores)
