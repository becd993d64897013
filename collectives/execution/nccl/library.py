"""NCCL's own collectives as calls that enqueue them: the baseline of a table of GPU plans.

Collectives that CuPy's NCCL lacks (all-to-all, gather, scatter, send-receive) are one group of
sends and receives, as NCCL's documentation composes them and nccl-tests measures them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.gpu.device import DeviceArray, GpuDevice
from collectives.execution.gpu.lane import QueuedCall
from collectives.execution.gpu.program import Port
from collectives.execution.transport import LibraryCall
from collectives.execution.world import World
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op

Call = Callable[[], Any]
# ncclDataType_t by NumPy's names, ncclRedOp_t by Busbar's names (nccl.h).
TYPES = {
    name: number
    for number, name in enumerate(
        (
            *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
            *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
        )
    )
}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
FLOAT8_SINCE, _FLOAT8_CAPABILITY = 22400, (9, 0)
# Bytes of NCCL's buffers by protocol, channels, and connections of a channel: defaults of its
# public sources (NCCL_BUFFSIZE, and constants for LL and LL128).
_SIMPLE = 4 << 20  # NCCL_BUFFSIZE
_LL = 512 << 10  # 8 lines x 512 threads x 8 steps x 16 bytes
_LL128 = 4_915_200  # 120 elements x 640 threads x 8 steps x 8 bytes
_CHANNELS = 32
_CONNECTIONS = 5  # one for a ring; for a tree three children and a parent


class NcclPort(Port, Protocol):
    """The parts of the transport that library calls use; ``nccl`` is CuPy's module."""

    world: World
    device: GpuDevice
    nccl: Any
    comm: Any

    @property
    def library_version(self) -> str:
        """NCCL and its version."""

    @property
    def meet(self) -> list[Call]:
        """Calls that make each stream wait for all ranks' streams."""

    def queued(self, call: Call) -> QueuedCall:
        """An NCCL call with the number of queue entries that it takes."""


class _Binding:
    """The arguments of the calls: communicator, stream, typed buffers, operation, root."""

    def __init__(self, transport: NcclPort, call: LibraryCall) -> None:
        spec, buffers, op, root = call.spec, call.buffers, call.op, call.root
        self.transport, self.comm = transport, transport.comm
        self.stream, self.root, self.elements = transport.lane.stream.ptr, root, call.elements
        self.rank, self.size = transport.world.rank, transport.world.size
        self.source, self.target = buffers[Buffer.IN], buffers[Buffer.OUT]
        self.layout = Layout(spec, self.size, spec.parts(self.size), root)
        self.kind = _kind(transport, (self.target if self.target.size else self.source).dtype, op)
        self.op = 0 if op is None else OPS[op.name]

    def own(self, method: str, counted: Buffer, *after: str) -> list[Call]:
        """One NCCL call for a buffer's elements; ``after``: arguments that follow the type."""
        size = (self.source if counted is Buffer.IN else self.target).size
        more = [{"op": self.op, "root": self.root}[name] for name in after]
        where = (self.source.address, self.target.address, size, self.kind)
        call = partial(getattr(self.comm, method), *where, *more, self.stream)
        return [self.transport.queued(call)]

    def pieces(self, buffer: Buffer) -> list[DeviceArray]:
        """A buffer's parts, in their order."""
        edges = self.layout.bounds(self.rank, buffer, self.elements).tolist()
        array = self.source if buffer is Buffer.IN else self.target
        return [array[a:b] for a, b in pairwise(edges)]

    def exchange(
        self, sends: list[tuple[DeviceArray, int]], receives: list[tuple[DeviceArray, int]]
    ) -> list[Call]:
        """One group of messages. As in nccl-tests, a rank sends its own part to itself."""
        port = self.transport
        calls = [port.send(array, peer) for array, peer in sends if array.size]
        calls += [port.receive(array, peer) for array, peer in receives if array.size]
        return [port.exchange(calls)] if calls else []


def _kind(transport: NcclPort, dtype: np.dtype[Any], op: Op | None) -> int:
    """NCCL's number of a type. Raises Unsupported if this NCCL or GPU cannot use it."""
    if dtype.name not in TYPES:
        raise Unsupported(f"NCCL has no type for {dtype.name}, so no library row")
    if op is not None and dtype.name.startswith("float8"):
        version, capability = int(transport.nccl.get_version()), transport.device.capability
        if version < FLOAT8_SINCE or capability < _FLOAT8_CAPABILITY:
            raise Unsupported(
                f"NCCL adds {dtype.name} since 2.24 and on compute capability 9.0; here are"
                f" {transport.library_version} and {capability[0]}.{capability[1]}"
            )
    return TYPES[dtype.name]


def _gather(b: _Binding) -> list[Call]:
    parts = b.pieces(Buffer.OUT) if b.rank == b.root else []
    receives = [(part, peer) for peer, part in enumerate(parts)]
    return b.exchange(*_without_self(b, [(b.source, b.root)], receives))


def _scatter(b: _Binding) -> list[Call]:
    parts = b.pieces(Buffer.IN) if b.rank == b.root else []
    sends = [(part, peer) for peer, part in enumerate(parts)]
    return b.exchange(*_without_self(b, sends, [(b.target, b.root)]))


Pairs = list[tuple[DeviceArray, int]]


def _without_self(b: _Binding, sends: Pairs, receives: Pairs) -> tuple[Pairs, Pairs]:
    """In place, drop the message from a rank to itself: its part is already there."""
    mine = [array.address for pairs in (sends, receives) for array, peer in pairs if peer == b.rank]
    if len(mine) == 2 and mine[0] == mine[1]:
        sends, receives = (
            [pair for pair in pairs if pair[1] != b.rank] for pairs in (sends, receives)
        )
    return sends, receives


def _alltoall(b: _Binding) -> list[Call]:
    sends = [(part, peer) for peer, part in enumerate(b.pieces(Buffer.IN))]
    receives = [(part, peer) for peer, part in enumerate(b.pieces(Buffer.OUT))]
    return b.exchange(sends, receives)


def _sendrecv(b: _Binding) -> list[Call]:
    goes_to, came_from = b.layout.spec.partners(b.size, b.rank)
    return b.exchange([(b.source, goes_to)], [(b.target, came_from)])


_CALLS: dict[str, Callable[[_Binding], list[Call]]] = {
    "allreduce": lambda b: b.own("allReduce", Buffer.OUT, "op"),
    "reduce": lambda b: b.own("reduce", Buffer.IN, "op", "root"),
    "broadcast": lambda b: b.own("broadcast", Buffer.OUT, "root"),
    "allgather": lambda b: b.own("allGather", Buffer.IN),
    "hypercube": lambda b: b.own("allGather", Buffer.IN),
    "reduce_scatter": lambda b: b.own("reduceScatter", Buffer.OUT, "op"),
    "gather": _gather,
    "scatter": _scatter,
    "alltoall": _alltoall,
    "alltoallv": _alltoall,
    "barrier": lambda b: b.transport.meet,
    "sendrecv": _sendrecv,
    "sendrecv_pairs": _sendrecv,
}


def library_calls(transport: NcclPort, call: LibraryCall) -> list[Call]:
    """The calls that run a collective once. Raises Unsupported if NCCL has none."""
    if call.spec.name not in _CALLS:
        raise Unsupported(f"NCCL has no collective {call.spec.name}, so no library row")
    return _CALLS[call.spec.name](_Binding(transport, call))


def buffer_bytes(nranks: int, env: Mapping[str, str]) -> int:
    """An upper bound of the bytes that one rank's communicator allocates.

    NCCL allocates buffers when an algorithm or a pair of ranks is first used, so memory must be
    left for them. The bound has buffers for collectives that may never run, and for the most
    connections that a ring and two trees on every channel have. ``env``: the user's NCCL_*
    variables count.
    """
    if nranks < 2:
        return 0
    simple = _number(env, "NCCL_BUFFSIZE", _SIMPLE)
    channels = _CHANNELS
    for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"):
        channels = min(channels, max(1, _number(env, name, channels)))
    collective = _CONNECTIONS * channels * (simple + _LL + _LL128)
    # Pairs of ranks that send to each other share the channels among all pairs.
    pairs = max(nranks - 1, channels) * simple
    return collective + pairs


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    return int(text) if text.isdigit() else default
