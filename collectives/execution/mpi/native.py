"""MPI's own collectives called and timed by the extension: no interpreter between two calls.

The extension knows no MPI. It is given the addresses of the functions that mpi4py itself calls, or
of those that a profiler has put before them, and the handles.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from busbar.errors import RankFailure
from collectives.execution.mpi.library import Call
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.transport import Action, Counted, Spans, Start
from native import load

if TYPE_CHECKING:
    from native._core import Timed

T = TypeVar("T")
_SHAPES = {
    "Allreduce": "reduction",
    "Reduce_scatter_block": "reduction",
    "Reduce": "rooted_reduction",
    "Bcast": "broadcast",
    "Allgather": "exchange",
    "Alltoall": "exchange",
    "Gather": "rooted_exchange",
    "Scatter": "rooted_exchange",
    "Alltoallv": "variable",
    "Sendrecv": "sendrecv",
    "Barrier": "barrier",
}
#: How many of a call's arguments are buffers.
_BUFFERS = {"barrier": 0, "broadcast": 1, "sendrecv": 2}
#: Counts of these are of one rank's part, and a buffer on the ``all`` side has every rank's.
_OF_ALL = {
    "Allgather": (False, True),
    "Gather": (False, True),
    "Scatter": (True, False),
    "Alltoall": (True, True),
    "Reduce_scatter_block": (True, False),
}
_MOST = 2**31 - 1  # a count is an int


class NativeCalls(Counted):
    """Calls of the library, made and timed by the extension; see `Action` for the methods.

    ``calls`` keeps alive what the extension has addresses of.
    """

    def __init__(self, world: MpiWorld, calls: Sequence[Call], timed: Timed) -> None:
        super().__init__(0, 0)
        self._world, self._calls, self._timed = world, calls, timed

    def __call__(self) -> None:
        """See `Action.__call__`. Raises RankFailure where MPI refuses."""
        self._runs += 1
        self._guarded(self._timed.run)

    def spans(self, n: int, start: Start) -> Spans:
        """See `Action.spans`."""
        if not start.by_host_clock:
            return super().spans(n, start)
        self._runs += n
        how = start.at, start.loop, start.slower
        return Spans(*self._guarded(lambda: self._timed.spans(n, *how)))

    def begun(self) -> int:
        """See `Action.begun`."""
        return self._timed.begun()

    def close(self) -> None:
        """Let go of the buffers."""
        del self._timed
        self._calls = []

    def _guarded(self, run: Callable[[], T]) -> T:
        from native._core import CallFailed

        try:
            return run()
        except CallFailed as error:
            text = self._world.mpi.Get_error_string(error.args[0])
            raise RankFailure(f"rank {self._world.rank}: MPI's collective failed: {text}") from None


def native_calls(world: MpiWorld, calls: Sequence[Call]) -> Action | None:
    """The calls as an action of the extension.

    None where that is not built, for what is no call of MPI (an average's division), for counts
    that MPI's plain functions cannot take, and where their addresses cannot be had. All ranks
    decide alike, as far as they have the same extension; where they do not, nothing is lost: every
    iteration is the same calls of MPI.
    """
    core = load()
    if core is None:
        return None
    describe = _Describer(world, core.SHAPES)
    rows = [describe.row(call) for call in calls]
    barrier = _address(world.mpi, "MPI_Barrier")
    if barrier is None or any(row is None for row in rows):
        return None
    mpi = world.mpi
    wide = mpi._sizeof(mpi.Comm) == ctypes.sizeof(ctypes.c_void_p)
    table = np.array(rows, core.CALL)
    comm = mpi._handleof(world.comm)
    return NativeCalls(world, calls, core.calls(table, describe.parts, barrier, comm, wide))


def _address(mpi: Any, name: str) -> int | None:
    """Where a function of MPI lies: what the process has preloaded comes before the library's."""
    for found in (None, mpi.__file__):
        function = getattr(ctypes.CDLL(found), name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value
    return None


class _Describer:
    """Makes rows of the extension's table of calls; ``parts``: the counts of an MPI_Alltoallv."""

    def __init__(self, world: MpiWorld, shapes: Sequence[str]) -> None:
        self._world, self._mpi, self._shapes = world, world.mpi, list(shapes)
        self.parts: list[int] = []

    def row(self, call: Call) -> tuple[int, ...] | None:
        """A row, or None where the call is none that the extension can make."""
        bound: Any = call.func if isinstance(call, partial) else call
        given = call.args if isinstance(call, partial) else ()
        if bound is np.copyto:
            target, source = given
            if not (target.flags.c_contiguous and source.flags.c_contiguous):
                return None
            at = self._shapes.index("copy")
            return at, 0, source.ctypes.data, target.ctypes.data, source.nbytes, 0, 0, 0, 0, 0
        name = getattr(bound, "__name__", "")
        if name not in _SHAPES or bound != getattr(self._world.comm, name):
            return None
        function = _address(self._mpi, f"MPI_{name}")
        return None if function is None else self._call(name, function, given)

    def _call(self, name: str, function: int, given: tuple[Any, ...]) -> tuple[int, ...] | None:
        shape, mpi = _SHAPES[name], self._mpi
        to = origin = 0
        op = next((mpi._handleof(x) for x in given if isinstance(x, mpi.Op)), 0)
        if shape == "sendrecv":
            sent, to, _, got, origin, _ = given
            buffers = [sent, got]
        else:
            buffers = list(given[: _BUFFERS.get(shape, 2)])
            to = given[-1] if shape in ("broadcast", "rooted_reduction", "rooted_exchange") else 0
        if shape == "broadcast":
            buffers = [None, *buffers]
        kinds = [b[-1] for b in buffers if isinstance(b, list)]
        kind = kinds[0] if kinds else mpi.BYTE
        many = _OF_ALL.get(name, (False, False))
        counts = [self._count(b, kind, each) for b, each in zip(buffers, many, strict=False)]
        counts += [0] * (2 - len(counts))
        if name == "Reduce_scatter_block":
            # One count, of a rank's part; in place the one buffer has every rank's.
            counts[1] = self._count(buffers[1], kind, buffers[0] is mpi.IN_PLACE)
        elif shape == "reduction":
            counts[1] = max(counts)
        elif shape == "rooted_reduction":
            counts[0] = max(counts)
        if shape == "variable":
            self.parts = [n for b in buffers for part in b[1] for n in part]
        if max(*counts, *self.parts, 0) > _MOST:
            return None
        at = [self._at(b) for b in buffers] + [0] * (2 - len(buffers))
        handle = mpi._handleof(kind)
        return self._shapes.index(shape), function, *at, *counts, to, origin, handle, op

    def _at(self, buffer: Any) -> int:
        """The address of what mpi4py was given as a buffer."""
        if buffer is None:
            return 0
        if buffer is self._mpi.IN_PLACE:
            return int(buffer) % 2**64
        return int(buffer[0].ctypes.data)

    def _count(self, buffer: Any, kind: Any, of_all: bool) -> int:
        """Its elements; ``of_all``: those of each rank's part."""
        if not isinstance(buffer, list):
            return 0
        count = int(buffer[0].nbytes) // int(kind.Get_size())
        return count // self._world.size if of_all else count
