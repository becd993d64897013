"""Memory that every rank maps through MPI-3 shared windows, for hosts with a closed ``/proc``.

Allocating and freeing a window are collective: all ranks allocate the same, and unused windows are
freed when all ranks call `trim`. MPI is used only through the world that is passed in.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unavailable, Unsupported
from collectives.execution.shm.memory import Memory, Segment
from collectives.execution.world import Json, World

MEMORIES = ("auto", "memfd", "windows")
# Each rank's part begins at a multiple of this. MPI promises no alignment: by default parts follow
# each other without gaps. A page's bytes have the same place in it in every process.
_PAGE = 4096


class Windows(Memory):
    """Memory that the ranks of a host share through windows of MPI (MPI_Win_allocate_shared).

    See `collectives.execution.shm.memory.Memory` for the methods. Raises
    Unavailable unless ``world`` is MPI's.
    """

    collective = True

    def __init__(self, world: Any) -> None:
        if not hasattr(world, "comm"):
            raise Unavailable("shared windows need MPI; use --transport inproc or mpi")
        super().__init__()
        self._world = world
        self._windows: dict[int, Any] = {}
        # Of each window, the first byte of this rank's part, and the part's bytes.
        self._parts: dict[int, tuple[int, int]] = {}
        # The number of arrays of this rank that view each window, including other ranks' parts.
        self._looks: Counter[int] = Counter()

    def _look(self, key: int, rank: int, begin: int, nbytes: int) -> NDArray[np.uint8]:
        """View ``nbytes`` of a rank's part, from ``begin`` on."""
        buffer, _ = self._windows[key].Shared_query(rank)
        array = np.frombuffer(buffer, np.uint8, nbytes, begin)
        self._looks[key] += 1
        weakref.finalize(array, self._looks.subtract, (key,))
        return array

    def allocate(self, nbytes: int) -> Segment:
        """Zeroed memory from the begin of a page on. All ranks call this together."""
        key, self._count = self._count, self._count + 1
        mpi, room = self._world.mpi, max(nbytes, 1)
        info = mpi.Info.Create({"alloc_shared_noncontig": "true"})
        try:
            self._windows[key] = mpi.Win.Allocate_shared(
                room + _PAGE - 1, 1, info, comm=self._world.comm
            )
        finally:
            info.Free()
        buffer, _ = self._windows[key].Shared_query(self._world.rank)
        begin = -int(np.frombuffer(buffer, np.uint8).ctypes.data) % _PAGE
        self._parts[key] = begin, room
        array = self._look(key, self._world.rank, begin, room)
        array[:] = 0
        self._own[key] = weakref.ref(array)
        return Segment(key, array)

    def describe(self, key: int) -> dict[str, int]:
        """A description of a segment, with which another rank can `attach` it."""
        begin, nbytes = self._parts[key]
        return {"rank": self._world.rank, "key": key, "begin": begin, "nbytes": nbytes}

    def close_file(self, key: int) -> None:
        """Do nothing: a window has no file of ours."""

    def attach(self, where: Mapping[str, int]) -> NDArray[np.uint8]:
        """Another rank's part of a window."""
        key, rank, begin, nbytes = (int(where[n]) for n in ("key", "rank", "begin", "nbytes"))
        return self._look(key, rank, begin, nbytes)

    def trim(self) -> None:
        """Free windows that no rank views any more. All ranks call this together."""
        idle = [key for key in self._windows if not self._looks[key]]
        for key in sorted(set(idle).intersection(*self._world.gather(idle))):
            self._windows.pop(key).Free()
            del self._own[key], self._looks[key], self._parts[key]

    def close(self) -> None:
        """Free all windows. All ranks call this together."""
        self._own.clear()
        for window in self._windows.values():
            window.Free()
        self._windows.clear()
        self._parts.clear()


def sharing(world: World, memory: str) -> Memory:
    """Find memory that all ranks of this host can map, by trying it together.

    ``memory`` is one of `MEMORIES`; ``auto`` uses MPI-3 windows if memfd fails. Raises Unsupported
    for any other text, Unavailable if nothing can be shared.
    """
    if memory not in MEMORIES:
        raise Unsupported(f"no memory {memory!r}; there are: {', '.join(MEMORIES)}")
    if memory == "windows":
        return Windows(world)
    files = Memory()
    failed = ""
    try:
        trial = files.allocate(1)
        where: Json = files.describe(trial.key)
    except Unavailable as error:
        failed, where = str(error), None
    for other in world.gather(where):
        try:
            if other is not None:
                files.attach(other)
        except Unavailable as error:
            failed = str(error)
    reasons = [reason for reason in world.gather(failed) if reason]
    if not reasons:
        return files
    if memory == "memfd" or not hasattr(world, "comm"):
        raise Unavailable(reasons[0])
    return Windows(world)
