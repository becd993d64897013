"""Memory that every rank maps through MPI-3 shared windows: where ``/proc`` does not let us.

Taking a window is collective, and so is giving it back: all ranks allocate alike, and what was
taken is held until `close`. Knows MPI only through the world that is handed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.errors import Unavailable
from collectives.shared.memory import Segment, outside

__all__ = ["Windows"]


class Windows:
    """See `collectives.shared.memory.Memory` for the methods; ``world`` must be MPI's.

    Raises Unavailable when the world is another.
    """

    collective = True

    def __init__(self, world: Any) -> None:
        if not hasattr(world, "comm"):
            raise Unavailable("shared windows need MPI; use --transport inproc or mpi")
        self._world = world
        self._windows: list[Any] = []
        self._own: list[NDArray[np.uint8]] = []

    def _look(self, key: int, rank: int) -> NDArray[np.uint8]:
        buffer, _ = self._windows[key].Shared_query(rank)
        return np.frombuffer(buffer, np.uint8)

    def allocate(self, nbytes: int) -> Segment:
        """Zeroed memory. All ranks call this together."""
        win = self._world.mpi.Win
        self._windows.append(win.Allocate_shared(max(nbytes, 1), 1, comm=self._world.comm))
        key = len(self._own)
        self._own.append(self._look(key, self._world.rank))
        self._own[key][:] = 0
        return Segment(key, self._own[key])

    def locate(self, array: NDArray[Any]) -> tuple[int, int]:
        """The segment that an array lies in, and its offset there."""
        at = int(array.ctypes.data)
        for key, mine in enumerate(self._own):
            offset = at - int(mine.ctypes.data)
            if offset >= 0 and offset + array.nbytes <= mine.nbytes:
                return key, offset
        raise outside()

    def own(self, key: int) -> NDArray[np.uint8]:
        """A segment of this rank."""
        return self._own[key]

    def describe(self, key: int) -> dict[str, int]:
        """How another rank finds a segment."""
        return {"rank": self._world.rank, "key": key}

    def attach(self, found: Mapping[str, int]) -> NDArray[np.uint8]:
        """Another rank's part of a window."""
        return self._look(int(found["key"]), int(found["rank"]))

    def close(self) -> None:
        """Give the windows back. All ranks call this together."""
        self._own.clear()
        for window in self._windows:
            window.Free()
        self._windows.clear()
