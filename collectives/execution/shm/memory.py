"""Memory that every rank of a node maps: anonymous files, opened through ``/proc``.

A memfd has no name, so nothing is left behind however its processes end, and a container's limit on
``/dev/shm`` does not apply. This module knows nothing of schedules.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unavailable

Bytes = NDArray[np.uint8]
Mapper = Callable[[int, int, bool], object]
HUGE_PAGE = 2 << 20
# A buffer from this size on is rounded up to whole huge pages: what ranks on few cores pay for
# refilling the TLB with small pages after every switch costs more than the memory is worth.
ROUNDED = 256 << 10


@dataclass(frozen=True)
class Segment:
    """A piece of shared memory, mapped here: ``array``; ``key`` tells its owner's apart."""

    key: int
    array: Bytes


def gone(key: int) -> Unavailable:
    """The error for a segment that nothing has kept alive."""
    return Unavailable(f"segment {key} is gone; keep the array that allocate() gave")


def outside() -> Unavailable:
    """The error for a buffer that other ranks cannot reach."""
    return Unavailable(
        "a buffer does not lie in memory that the shm transport allocated;"
        " take it from the transport's allocate()"
    )


def _map(fd: int, nbytes: int, fresh: bool) -> object:
    """A shared mapping, its pages touched when the file is ``fresh``; in huge pages if granted."""
    found = mmap.mmap(fd, nbytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages: ordinary ones serve
            found.madvise(mmap.MADV_HUGEPAGE)
    if fresh:
        np.frombuffer(found, np.uint8)[:: mmap.PAGESIZE] = 0
    return found


class Memory:
    """One rank's allocations, and the other ranks' that it has opened.

    ``mapper(fd, nbytes, fresh)`` maps a file, and when it is fresh touches its pages; it gives an
    object with the buffer protocol. The native one gets huge pages more often. A segment lives as
    long as an array that looks into it.
    """

    collective = False

    def __init__(self, mapper: Mapper | None = None) -> None:
        self._map = mapper or _map
        self._own: dict[int, weakref.ref[Bytes]] = {}
        self._fds: dict[int, tuple[int, int, int]] = {}
        self._count = 0

    def allocate(self, nbytes: int) -> Segment:
        """Zeroed memory, touched here first, so that it lies near this rank.

        Raises Unavailable where the kernel gives none.
        """
        room = max(nbytes, 1) if nbytes < ROUNDED else -(-nbytes // HUGE_PAGE) * HUGE_PAGE
        try:
            fd = os.memfd_create("busbar", os.MFD_CLOEXEC)
            os.ftruncate(fd, room)
            array = np.frombuffer(self._map(fd, room, True), np.uint8)  # type: ignore[call-overload]
        except (AttributeError, OSError) as error:
            raise Unavailable(
                f"no shared memory of {nbytes} bytes ({error}); use --transport mpi"
            ) from None
        key, self._count = self._count, self._count + 1
        self._fds[key] = (fd, int(array.ctypes.data), room)
        self._own[key] = weakref.ref(array)
        weakref.finalize(array, self._forget, key)
        return Segment(key, array)

    def _forget(self, key: int) -> None:
        fd, _, _ = self._fds.pop(key)
        del self._own[key]
        os.close(fd)

    def locate(self, array: NDArray[np.generic]) -> tuple[int, int]:
        """The segment that an array lies in, and its offset there.

        Raises Unavailable when the array is not in memory of this transport.
        """
        at = int(array.ctypes.data)
        for key, (_, start, size) in self._fds.items():
            if start <= at and at + array.nbytes <= start + size:
                return key, at - start
        raise outside()

    def own(self, key: int) -> Bytes:
        """A segment of this rank, while something else keeps it alive."""
        array = self._own[key]()
        if array is None:
            raise gone(key)
        return array

    def describe(self, key: int) -> dict[str, int]:
        """How another rank finds a segment: as JSON, for `attach`."""
        fd, _, size = self._fds[key]
        return {"pid": os.getpid(), "fd": fd, "nbytes": size}

    def attach(self, found: Mapping[str, int]) -> Bytes:
        """Map another rank's segment. Raises Unavailable where ``/proc`` does not let us."""
        path = f"/proc/{int(found['pid'])}/fd/{int(found['fd'])}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                mapped = self._map(fd, int(found["nbytes"]), False)
            finally:
                os.close(fd)
        except OSError as error:
            raise Unavailable(
                f"cannot map another rank's memory through {path} ({error.strerror});"
                " ranks of one node must see each other's processes; use --transport mpi"
            ) from None
        return np.frombuffer(mapped, np.uint8)  # type: ignore[call-overload, no-any-return]

    def trim(self) -> None:
        """Nothing: segments go by themselves."""

    def close(self) -> None:
        """Nothing: segments go with the arrays that look into them."""
