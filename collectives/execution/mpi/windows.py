"""MPI-3 windows, and puts and gets on them.

The calls are the default of OSU's one-sided tests: MPI_Win_allocate, passive targets,
MPI_Win_flush.
"""

from __future__ import annotations

import weakref
from collections import Counter
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unsupported
from collectives.execution.mpi.calls import Call, PersistentCalls, bind_calls
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.one_sided import OneSidedProgram
from collectives.execution.program import Program
from collectives.execution.transport import Buffers, OneSidedAccess

Bytes = NDArray[np.uint8]
#: Allocations begin at a multiple of so many bytes; MPI's begin at one of 8. The C library copies
#: with "rep movsb", which on AMD's Zen 3 and 4 is 17 times slower if the target lies 1 to 15 bytes
#: further into its page than the source does (glibc's bug 30994).
_ALIGNED = 64


class ReachedMemory:
    """Windows of all ranks, one for each allocation; all ranks call the methods together."""

    def __init__(self, world: MpiWorld) -> None:
        self._world, self._numbers = world, count()
        self._windows: dict[int, Any] = {}
        self._starts: dict[int, tuple[int, int]] = {}
        self._held: Counter[int] = Counter()

    def allocate(self, nbytes: int) -> Bytes:
        """This rank's memory of a new window; `trim` frees it when no rank holds its array."""
        number, mpi = next(self._numbers), self._world.mpi
        window = mpi.Win.Allocate(nbytes + _ALIGNED, 1, comm=self._world.comm)
        window.Lock_all(mpi.MODE_NOCHECK)
        array = np.frombuffer(window.tomemory(), np.uint8)
        self._windows[number] = window
        self._starts[number] = int(array.ctypes.data), array.nbytes
        self._held[number] = 1
        weakref.finalize(array, self._held.subtract, (number,))
        return array[-int(array.ctypes.data) % _ALIGNED :][:nbytes]

    def locate(self, array: NDArray[Any]) -> tuple[Any, int]:
        """The window that contains an array, and the array's offset in bytes.

        Raises Unsupported if no window does.
        """
        at = int(array.ctypes.data)
        for number, (start, nbytes) in self._starts.items():
            if start <= at and at + array.nbytes <= start + nbytes:
                return self._windows[number], at - start
        raise Unsupported("put and get reach memory that the transport allocated, and no other")

    def trim(self) -> None:
        """Free windows whose arrays no rank holds any more."""
        idle = [number for number in self._windows if self._held[number] <= 0]
        for number in sorted(set(idle).intersection(*self._world.gather(idle))):
            self._free(number)

    def close(self) -> None:
        """Free all windows."""
        for number in list(self._windows):
            self._free(number)

    def _free(self, number: int) -> None:
        window = self._windows.pop(number)
        del self._starts[number], self._held[number]
        window.Unlock_all()
        window.Free()


def one_sided(
    world: MpiWorld, windows: ReachedMemory, program: Program, buffers: Buffers, how: OneSidedAccess
) -> PersistentCalls:
    """Bind a program of one step as MPI_Put or MPI_Get, see `Transport.one_sided`."""
    reaching, kind = OneSidedProgram(world, program, how), world.mpi.BYTE
    exposed = buffers[reaching.exposed]
    window, offset = windows.locate(exposed)
    begins = world.gather(offset)
    act = window.Put if reaching.put else window.Get
    calls: list[Call] = []
    for peer, own, start, _ in reaching.accesses:
        near = buffers[own.buffer][own.start : own.stop].view(np.uint8)
        far = [begins[peer] + start * exposed.itemsize, near.nbytes, kind]
        calls.append(partial(act, [near, kind], peer, far))
    calls += [partial(window.Flush, peer) for peer in reaching.peers]
    return bind_calls(world, calls, reaching.moved(exposed.itemsize), times=reaching.times)
