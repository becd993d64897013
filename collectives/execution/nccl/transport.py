"""NCCL between GPUs: any schedule through grouped send and recv, and NCCL's own collectives.

The modules ``cupy`` (inside the device) and ``cupy.cuda.nccl`` are parameters. A step is one group
of messages and one kernel for each slot that is added to, all on the rank's stream. The whole plan
is captured once as a CUDA graph where that works.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import WeakSet

import numpy as np

from busbar.errors import Unavailable, Unsupported
from collectives.execution.gpu.action import QUEUE, StreamAction
from collectives.execution.gpu.device import Call, DeviceArray, GpuDevice
from collectives.execution.gpu.lane import Lane, QueuedCall
from collectives.execution.gpu.program import bind, staging_bytes
from collectives.execution.gpu.take import version_text
from collectives.execution.gpu.transport import GpuTransport
from collectives.execution.nccl.debug_log import Log
from collectives.execution.program import Program
from collectives.execution.transport import LibraryCall
from collectives.execution.world import Json, World
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op

_MEET_BYTES = 4
# An NCCL call puts a wait, its kernel and a record into the stream's queue, sometimes one more.
_ENTRIES = 4
# Between nodes, each call also takes an entry per channel and direction from NCCL's pool for its
# proxy thread (MAX_OPS_PER_PEER in proxy.h), and NCCL waits if the pool is empty. Sixteen calls of
# 32 channels exhaust the 1,024 entries of NCCL 2.2x, so a call counts as 1/16 of the queue.
_ENTRIES_BETWEEN_NODES = QUEUE // 16
# ncclDataType_t by NumPy's names, ncclRedOp_t by Busbar's names (nccl.h).
TYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6,
    "float32": 7, "float64": 8, "bfloat16": 9, "float8_e4m3fn": 10, "float8_e5m2": 11,
}  # fmt: skip
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
BYTES, FLOAT, SUM = TYPES["uint8"], TYPES["float32"], OPS["sum"]
FLOAT8_SINCE, _FLOAT8_CAPABILITY = 22400, (9, 0)
# Bytes of NCCL's buffers by protocol, channels, and connections of a channel: defaults of its
# public sources (NCCL_BUFFSIZE, and constants for LL and LL128).
_SIMPLE = 4 << 20  # NCCL_BUFFSIZE
_LL = 512 << 10  # 8 lines x 512 threads x 8 steps x 16 bytes
_LL128 = 4_915_200  # 120 elements x 640 threads x 8 steps x 8 bytes
_CHANNELS = 32
_CONNECTIONS = 5  # one for a ring; for a tree three children and a parent


@contextmanager
def grouped(nccl: Any) -> Iterator[None]:
    """Group NCCL calls. The group is also ended if one of them fails."""
    nccl.groupStart()
    try:
        yield
    except BaseException:
        # The calls' own error is the one to report.
        with suppress(RuntimeError):
            nccl.groupEnd()
        raise
    nccl.groupEnd()


def join(world: World, nccl: Any, where: str) -> Any:
    """Create a communicator of all ranks, with the unique id of rank 0.

    ``where``: this rank's GPU. Raises Unavailable on all ranks if one rank cannot join.
    """
    # A tuple before CuPy 14, bytes since.
    identity = nccl.get_unique_id() if world.rank == 0 else b""
    message = world.broadcast([isinstance(identity, bytes), list(identity)])
    unique = bytes(message[1]) if message[0] else tuple(message[1])
    try:
        comm, problem = nccl.NcclCommunicator(world.size, unique, world.rank), ""
    except RuntimeError as error:
        comm, problem = None, f"rank {world.rank} on GPU {where}: {error}"
    problems = [one for one in world.gather(problem) if one]
    if problems:
        raise Unavailable(f"no NCCL communicator: {problems[0]} (NCCL_DEBUG=WARN says more)")
    return comm


class NcclTransport(GpuTransport):
    """The transport that uses NCCL; see `Transport` for the methods.

    All ranks call `prepare` and `library` together. ``graph``: replay plans from captured graphs.
    ``cold``: let sets of buffers take turns, so that no iteration finds its operands in the L2
    cache. ``compare``: measure also what graph and eager iterations take without a gate. ``log``:
    what NCCL writes its choices to. Raises Unavailable when a communicator cannot be made.
    """

    name = "nccl"
    has_library = True
    # NCCL multiplies by a rounded 1/n, so its averages of floats are near, not exact.
    average_ulps = 2

    def __init__(
        self,
        world: World,
        device: GpuDevice,
        nccl: Any,
        *,
        graph: bool = True,
        cold: bool = True,
        compare: bool = False,
        deadline: float = 60.0,
        log: Log | None = None,
        communicator: Any = None,
    ) -> None:
        """``communicator``: an existing one, split from another."""
        version = version_text(int(nccl.get_version()))
        super().__init__(world, device, {"nccl": version, "graph": graph}, cold=cold)
        self.nccl = nccl
        self._graph, self._compare = graph, compare
        self._log = log or Log()
        self.action_facts: dict[str, Json] = {}
        self._actions: WeakSet[StreamAction] = WeakSet()
        self.comm = communicator
        if communicator is None:
            self.comm = join(world, nccl, device.bus_id)
        self.lane = Lane(device, world, check=self._check, give_up=self.give_up, deadline=deadline)
        self._word = device.allocate(_MEET_BYTES)
        self._word[:] = 0
        # Loading and allocating may wait for the device, so all ranks finish it before a plan runs.
        world.barrier()
        # The first meeting connects the ranks; later ones may stand behind a closed gate.
        self.lane.enqueue(self.meet)
        self.lane.wait()

    @property
    def meet(self) -> list[Call]:
        """Calls that let all ranks' streams wait for each other: an all-reduce of one element."""
        at, stream = self._word.address, self.lane.stream.ptr
        return [self.queued(lambda: self.comm.allReduce(at, at, 1, FLOAT, SUM, stream))]

    def queued(self, call: Call) -> QueuedCall:
        """An NCCL call with the number of queue entries that it takes.

        A graph's launch hands its work to the proxy thread when the stream reaches it.
        """
        between = len(set(self.world.nodes)) > 1
        return QueuedCall(call, _ENTRIES_BETWEEN_NODES if between else _ENTRIES, _ENTRIES)

    def send(self, view: DeviceArray, peer: int) -> Call:
        """Prepare a message to another rank, see `Port.send`.

        Messages are sent as bytes, whatever the element type.
        """
        stream = self.lane.stream.ptr
        return partial(self.comm.send, view.address, view.nbytes, BYTES, peer, stream)

    def receive(self, view: DeviceArray, peer: int) -> Call:
        """Prepare a message from another rank, see `Port.receive`."""
        stream = self.lane.stream.ptr
        return partial(self.comm.recv, view.address, view.nbytes, BYTES, peer, stream)

    def exchange(self, messages: list[Call]) -> Call:
        """A call that exchanges the prepared messages as one NCCL group; see `Port.exchange`."""
        return self.queued(partial(self._group, messages))

    def _group(self, messages: list[Call]) -> None:
        with grouped(self.nccl):
            for message in messages:
                message()

    # -- methods of `Transport`

    def staging(self, program: Program, itemsize: int) -> int:
        """Bytes of staging for messages to be added, and for the sets of buffers in rotation."""
        own = sum(program.elements.values()) * itemsize
        return staging_bytes(program, itemsize) + self.rotation(own)

    def prepare(self, program: Program, buffers: Any, op: Op | None) -> StreamAction:
        """Bind one rank's program to its buffers, see `Transport.prepare`."""
        itemsize = next(iter(buffers.values())).itemsize
        room = self.device.allocate(staging_bytes(program, itemsize))
        sets = self.sets(buffers)
        bound = [bind(self, program, each, room, op) for each in sets]
        sent, received = program.sent() * itemsize, program.received() * itemsize
        return self._action(bound, (sent, received), (sets, room), "")

    def library(self, call: LibraryCall) -> StreamAction:
        """NCCL's own collective, or the group of sends and receives that implements it.

        Raises Unsupported if NCCL has no such type.
        """
        sets = self.sets(call.buffers)
        bound = [library_calls(self, replace(call, buffers=each)) for each in sets]
        return self._action(bound, (0, 0), sets, call.spec.name)

    def _action(
        self, bound: list[Any], moved: tuple[int, int], held: object, library: str
    ) -> StreamAction:
        self.action_facts = {}
        self._log.skip()
        # The action must not refer to itself: its memory is freed when it is closed, not when
        # Python collects cycles.
        action = StreamAction(
            self.lane,
            bound,
            moved,
            meet=self.meet,
            graph=self._graph,
            held=held,
            connected=partial(self._connected, library),
            refused=self._refused,
        )
        self._actions.add(action)
        # Allocating and loading may wait for the device, so no rank may run a plan until all are
        # done.
        self.world.barrier()
        return action

    def _connected(self, library: str, action: StreamAction) -> None:
        """After the first run: report NCCL's choice, and times with and without graphs if asked."""
        if library:
            self.action_facts |= self._log.chosen()
        if self._compare:
            overheads = action.overhead()
            self.action_facts |= {
                f"{name}_us": round(each * 1e6, 3) for name, each in overheads.items()
            }

    def _refused(self, what: str, why: str) -> None:
        """Report for the row and its record why a graph or a gate was not possible."""
        self.action_facts[what] = why

    # -- groups

    def split(self, group: World) -> NcclTransport:
        """A transport for the ranks of ``group``. All ranks call this together.

        Uses ncclCommSplit if CuPy has it, otherwise a unique id for each group.
        """
        communicator = None
        if hasattr(self.comm, "commSplit"):
            # A group's colour is the rank number of its first member.
            color = group.broadcast(self.world.rank)
            communicator = self.comm.commSplit(color, group.rank)
        part = NcclTransport(
            group,
            self.device,
            self.nccl,
            graph=self._graph,
            cold=self.cold,
            compare=self._compare,
            deadline=self.lane.deadline,
            log=self._log,
            communicator=communicator,
        )
        part.remarks = self.remarks
        return part

    # -- facts for records

    @property
    def library_version(self) -> str:
        """The library and its version: ``NCCL 2.32.3``."""
        return f"NCCL {self.facts['nccl']}"

    def room(self) -> tuple[str, int]:
        """The GPU's name, and the bytes that are free for buffers.

        Memory that NCCL may still allocate is subtracted.
        """
        name, free = super().room()
        here = self.facts["uuids"].count(self.device_uuid)
        return name, max(0, free - here * buffer_bytes(self.world.size, os.environ))

    # -- closing

    def _check(self) -> None:
        if self.comm is not None:
            self.comm.check_async_error()

    def _detach(self) -> Any:
        """Take the communicator out of this transport.

        Actions are closed first: NCCL waits until their graphs are gone.
        """
        for action in list(self._actions):
            action.close()
        comm, self.comm = self.comm, None
        return comm

    def give_up(self) -> None:
        """Abort the communicator, so that kernels that wait for another rank end."""
        comm = self._detach()
        if comm is not None:
            with suppress(RuntimeError):
                comm.abort()
        self._log.close()

    def close(self) -> None:
        """Close what was prepared here, and destroy the communicator."""
        if self.comm is not None:
            self.lane.wait()
        comm = self._detach()
        if comm is not None:
            comm.destroy()
        self._word = self.device.wrap(0, 0, None)
        self.device.sweep()
        self._log.close()


# Arrays, each with the rank that it goes to or comes from.
Pairs = list[tuple[DeviceArray, int]]


class _Binding:
    """The arguments of the calls: communicator, stream, typed buffers, operation, root."""

    def __init__(self, transport: NcclTransport, call: LibraryCall) -> None:
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

    def exchange(self, sends: Pairs, receives: Pairs) -> list[Call]:
        """One group of messages. As in nccl-tests, a rank sends its own part to itself."""
        port = self.transport
        calls = [port.send(array, peer) for array, peer in sends if array.size]
        calls += [port.receive(array, peer) for array, peer in receives if array.size]
        return [port.exchange(calls)] if calls else []


def _kind(transport: NcclTransport, dtype: np.dtype[Any], op: Op | None) -> int:
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


def _without_self(b: _Binding, sends: Pairs, receives: Pairs) -> tuple[Pairs, Pairs]:
    """In place, drop the message from a rank to itself: its part is already there."""
    own = [array.address for pairs in (sends, receives) for array, peer in pairs if peer == b.rank]
    if len(own) == 2 and own[0] == own[1]:
        sends, receives = ([p for p in pairs if p[1] != b.rank] for pairs in (sends, receives))
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


def library_calls(transport: NcclTransport, call: LibraryCall) -> list[Call]:
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
    limits = (_number(env, name, _CHANNELS) for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"))
    channels = max(1, min(_CHANNELS, *limits))
    collective = _CONNECTIONS * channels * (simple + _LL + _LL128)
    # Pairs of ranks that send to each other share the channels among all pairs.
    pairs = max(nranks - 1, channels) * simple
    return collective + pairs


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    return int(text) if text.isdigit() else default
