"""MPI's own collectives: the baseline of every table.

`library_calls` gives them as mpi4py's calls without arguments, `native_calls` as calls that the
extension makes and times, so that no interpreter runs between two of them. The extension knows no
MPI: it is given the handles and the addresses of the functions that mpi4py itself calls, or of
those that a profiler has put before them.

In place ``in`` and ``out`` share memory as the specification says; MPI is told with MPI_IN_PLACE.
MPI_Bcast has one buffer only: out of place the root's copy from ``in`` to ``out`` belongs to it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from busbar.errors import RankFailure, Unsupported
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.transport import Action, Array, Counted, LibraryCall, Spans, Start
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import scale
from native import load

if TYPE_CHECKING:
    from native._core import Timed

Call = Callable[[], Any]
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


class _Binding:
    """The arguments of the calls: communicator, typed buffers, operation, root."""

    def __init__(
        self,
        world: MpiWorld,
        call: LibraryCall,
        copy: Callable[[Any, Any], None],
    ) -> None:
        spec, op, root = call.spec, call.op, call.root
        self.copy = copy
        self.world, self.mpi, self.comm = world, world.mpi, world.comm
        self.source, self.target = call.buffers[Buffer.IN], call.buffers[Buffer.OUT]
        self.root, self.in_place, self.elements = root, call.in_place, call.elements
        self.layout = Layout(spec, world.size, spec.parts(world.size), root)
        array = self.target if self.target.size else self.source
        self.kind, self.width = world.type_of(array.dtype), 1
        if self.kind is None and op is None:
            # Moving needs no arithmetic, so MPI may take the elements for bytes.
            self.kind, self.width = self.mpi.BYTE, array.itemsize
            self.source, self.target = self.source.view(np.uint8), self.target.view(np.uint8)
        if self.kind is None:
            raise Unsupported(f"MPI has no type for {array.dtype.name}, so no library row")
        named = {"prod": self.mpi.PROD, "min": self.mpi.MIN, "max": self.mpi.MAX}
        self.op = None if op is None else named.get(op.name, self.mpi.SUM)

    def typed(self, array: Array) -> list[Any]:
        return [array, self.kind]

    @property
    def is_root(self) -> bool:
        return bool(self.world.rank == self.root)

    def send(self) -> Any:
        return self.mpi.IN_PLACE if self.in_place else self.typed(self.source)


def _allreduce(b: _Binding) -> list[Call]:
    return [partial(b.comm.Allreduce, b.send(), b.typed(b.target), b.op)]


def _reduce(b: _Binding) -> list[Call]:
    if not b.is_root:
        return [partial(b.comm.Reduce, b.typed(b.source), None, b.op, b.root)]
    return [partial(b.comm.Reduce, b.send(), b.typed(b.target), b.op, b.root)]


def _broadcast(b: _Binding) -> list[Call]:
    call = partial(b.comm.Bcast, b.typed(b.target), b.root)
    if b.is_root and not b.in_place:
        return [partial(b.copy, b.target, b.source), call]
    return [call]


def _allgather(b: _Binding) -> list[Call]:
    return [partial(b.comm.Allgather, b.send(), b.typed(b.target))]


def _reduce_scatter(b: _Binding) -> list[Call]:
    if b.in_place:
        # MPI leaves the result at the vector's start; nccl-tests wants it at the rank's own part.
        call = partial(b.comm.Reduce_scatter_block, b.mpi.IN_PLACE, b.typed(b.source), b.op)
        start = b.source[: len(b.target)]
        return [call, partial(b.copy, b.target, start)] if b.world.rank else [call]
    return [partial(b.comm.Reduce_scatter_block, b.typed(b.source), b.typed(b.target), b.op)]


def _gather(b: _Binding) -> list[Call]:
    if not b.is_root:
        return [partial(b.comm.Gather, b.typed(b.source), None, b.root)]
    return [partial(b.comm.Gather, b.send(), b.typed(b.target), b.root)]


def _scatter(b: _Binding) -> list[Call]:
    if not b.is_root:
        return [partial(b.comm.Scatter, None, b.typed(b.target), b.root)]
    own = b.mpi.IN_PLACE if b.in_place else b.typed(b.target)
    return [partial(b.comm.Scatter, b.typed(b.source), own, b.root)]


def _alltoall(b: _Binding) -> list[Call]:
    return [partial(b.comm.Alltoall, b.typed(b.source), b.typed(b.target))]


def _alltoallv(b: _Binding) -> list[Call]:
    def described(array: Array, buffer: Buffer) -> list[Any]:
        edges = b.layout.bounds(b.world.rank, buffer, b.elements) * b.width
        return [array, (np.diff(edges).tolist(), edges[:-1].tolist()), b.kind]

    send, receive = described(b.source, Buffer.IN), described(b.target, Buffer.OUT)
    return [partial(b.comm.Alltoallv, send, receive)]


def _barrier(b: _Binding) -> list[Call]:
    return [b.comm.Barrier]


def _sendrecv(b: _Binding) -> list[Call]:
    goes_to, came_from = b.layout.spec.partners(b.world.size, b.world.rank)
    return [
        partial(b.comm.Sendrecv, b.typed(b.source), goes_to, 0, b.typed(b.target), came_from, 0)
    ]


_CALLS: dict[str, Callable[[_Binding], list[Call]]] = {
    "allreduce": _allreduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "allgather": _allgather,
    "hypercube": _allgather,
    "reduce_scatter": _reduce_scatter,
    "gather": _gather,
    "scatter": _scatter,
    "alltoall": _alltoall,
    "alltoallv": _alltoallv,
    "barrier": _barrier,
    "sendrecv": _sendrecv,
    "sendrecv_pairs": _sendrecv,
}


def library_calls(
    world: MpiWorld, call: LibraryCall, *, copy: Callable[[Any, Any], None] = np.copyto
) -> list[Call]:
    """The calls that carry a collective out once; ``copy`` copies inside a rank.

    Raises Unsupported where MPI has none.
    """
    if call.spec.name not in _CALLS:
        raise Unsupported(f"MPI has no collective {call.spec.name}, so no library row")
    binding = _Binding(world, call, copy)
    calls = _CALLS[call.spec.name](binding)
    if call.op is not None and call.op.mean and binding.target.size:
        # MPI has no average: its sum, and our division, as a user would have to do it.
        calls.append(partial(scale, binding.target, world.size))
    return calls


def nonblocking(world: MpiWorld, calls: Sequence[Call]) -> tuple[list[Call], Call, list[Call]]:
    """The same calls with the collective in its non-blocking form: before it, it, and after it.

    Raises Unsupported where this MPI has no such form.
    """
    for at, call in enumerate(calls):
        bound, given = (call.func, call.args) if isinstance(call, partial) else (call, ())
        if bound == getattr(world.comm, bound.__name__, None):
            name = f"I{bound.__name__.lower()}"
            if not hasattr(world.comm, name):
                raise Unsupported(f"this MPI has no MPI_{name}")
            begin = partial(getattr(world.comm, name), *given)
            return list(calls[:at]), begin, list(calls[at + 1 :])
    raise AssertionError("none of these calls is the communicator's")


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
