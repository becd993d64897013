"""Memory that every rank of a node maps: anonymous files, opened through ``/proc``.

A memfd has no name, so nothing is left behind however its processes end, and a container's limit on
``/dev/shm`` does not apply. This module knows nothing of schedules.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unavailable

Bytes = NDArray[np.uint8]
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
            array = _mapped(fd, room, True)
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
