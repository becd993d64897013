"""MPI's own collectives as mpi4py's calls without arguments: the baseline of every table.

In place, ``in`` and ``out`` share memory as the specification says; MPI gets MPI_IN_PLACE.
MPI_Bcast has only one buffer: out of place, the root's copy from ``in`` to ``out`` is timed too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.mpi.calls import Call
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.transport import Array, LibraryCall
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import scale


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
            # Without arithmetic, MPI can move elements of any type as bytes.
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


def _to_root(b: _Binding, method: Any, *op: Any) -> list[Call]:
    """A reduce or a gather: only the root has a receive buffer, and may be in place."""
    if not b.is_root:
        return [partial(method, b.typed(b.source), None, *op, b.root)]
    return [partial(method, b.send(), b.typed(b.target), *op, b.root)]


def _broadcast(b: _Binding) -> list[Call]:
    call = partial(b.comm.Bcast, b.typed(b.target), b.root)
    if b.is_root and not b.in_place:
        return [partial(b.copy, b.target, b.source), call]
    return [call]


def _reduce_scatter(b: _Binding) -> list[Call]:
    if b.in_place:
        # MPI puts the result at the vector's start, but nccl-tests at the rank's own part.
        call = partial(b.comm.Reduce_scatter_block, b.mpi.IN_PLACE, b.typed(b.source), b.op)
        start = b.source[: len(b.target)]
        return [call, partial(b.copy, b.target, start)] if b.world.rank else [call]
    return [partial(b.comm.Reduce_scatter_block, b.typed(b.source), b.typed(b.target), b.op)]


def _scatter(b: _Binding) -> list[Call]:
    if not b.is_root:
        return [partial(b.comm.Scatter, None, b.typed(b.target), b.root)]
    own = b.mpi.IN_PLACE if b.in_place else b.typed(b.target)
    return [partial(b.comm.Scatter, b.typed(b.source), own, b.root)]


def _alltoallv(b: _Binding) -> list[Call]:
    def described(array: Array, buffer: Buffer) -> list[Any]:
        edges = b.layout.bounds(b.world.rank, buffer, b.elements) * b.width
        return [array, (np.diff(edges).tolist(), edges[:-1].tolist()), b.kind]

    send, receive = described(b.source, Buffer.IN), described(b.target, Buffer.OUT)
    return [partial(b.comm.Alltoallv, send, receive)]


def _sendrecv(b: _Binding) -> list[Call]:
    goes_to, came_from = b.layout.spec.partners(b.world.size, b.world.rank)
    return [
        partial(b.comm.Sendrecv, b.typed(b.source), goes_to, 0, b.typed(b.target), came_from, 0)
    ]


_CALLS: dict[str, Callable[[_Binding], list[Call]]] = {
    "allreduce": lambda b: [partial(b.comm.Allreduce, b.send(), b.typed(b.target), b.op)],
    "reduce": lambda b: _to_root(b, b.comm.Reduce, b.op),
    "broadcast": _broadcast,
    "allgather": lambda b: [partial(b.comm.Allgather, b.send(), b.typed(b.target))],
    "hypercube": lambda b: [partial(b.comm.Allgather, b.send(), b.typed(b.target))],
    "reduce_scatter": _reduce_scatter,
    "gather": lambda b: _to_root(b, b.comm.Gather),
    "scatter": _scatter,
    "alltoall": lambda b: [partial(b.comm.Alltoall, b.typed(b.source), b.typed(b.target))],
    "alltoallv": _alltoallv,
    "barrier": lambda b: [b.comm.Barrier],
    "sendrecv": _sendrecv,
    "sendrecv_pairs": _sendrecv,
}


def library_calls(
    world: MpiWorld, call: LibraryCall, *, copy: Callable[[Any, Any], None] = np.copyto
) -> list[Call]:
    """The calls that run a collective once; ``copy`` copies inside a rank.

    Raises Unsupported if MPI has no such collective or type.
    """
    if call.spec.name not in _CALLS:
        raise Unsupported(f"MPI has no collective {call.spec.name}, so no library row")
    binding = _Binding(world, call, copy)
    calls = _CALLS[call.spec.name](binding)
    if call.op is not None and call.op.mean and binding.target.size:
        # MPI has no average: sum and divide, as an application has to.
        calls.append(partial(scale, binding.target, world.size))
    return calls


def nonblocking(world: MpiWorld, calls: Sequence[Call]) -> tuple[list[Call], Call, list[Call]]:
    """Split a collective's calls: those before it, its non-blocking form, and those after it.

    Raises Unsupported if this MPI has no such form.
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
