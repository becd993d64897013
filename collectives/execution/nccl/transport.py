"""NCCL between GPUs: any schedule through grouped send and recv, and NCCL's own collectives.

The modules ``cupy`` (inside the device) and ``cupy.cuda.nccl`` are parameters. A step is one group
of messages and one kernel for each slot that is added to, all on the rank's stream. The whole plan
is captured once as a CUDA graph where that works.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakSet

from busbar.errors import Unavailable
from collectives.execution.gpu.action import QUEUE, StreamAction
from collectives.execution.gpu.device import DeviceArray, GpuDevice
from collectives.execution.gpu.lane import Lane, QueuedCall
from collectives.execution.gpu.program import bind, staging_bytes
from collectives.execution.gpu.take import version_text
from collectives.execution.gpu.transport import GpuTransport
from collectives.execution.nccl.debug_log import Log
from collectives.execution.nccl.library import buffer_bytes, library_calls
from collectives.execution.program import Program
from collectives.execution.transport import LibraryCall
from collectives.execution.world import Json, World
from collectives.schedule.ops import Op

Call = Callable[[], Any]
BYTES, FLOAT, SUM = 1, 7, 0  # ncclUint8, ncclFloat, ncclSum
_MEET_BYTES = 4
# An NCCL call puts a wait, its kernel and a record into the stream's queue, sometimes one more.
_ENTRIES = 4
# Between nodes, each call also takes an entry per channel and direction from NCCL's pool for its
# proxy thread (MAX_OPS_PER_PEER in proxy.h), and NCCL waits if the pool is empty. Sixteen calls of
# 32 channels exhaust the 1,024 entries of NCCL 2.2x, so a call counts as 1/16 of the queue.
_ENTRIES_BETWEEN_NODES = QUEUE // 16


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
    mine = nccl.get_unique_id() if world.rank == 0 else b""
    given = world.broadcast([isinstance(mine, bytes), list(mine)])
    unique = bytes(given[1]) if given[0] else tuple(given[1])
    try:
        comm, problem = nccl.NcclCommunicator(world.size, unique, world.rank), ""
    except RuntimeError as error:
        comm, problem = None, f"rank {world.rank} on GPU {where}: {error}"
    problems = [one for one in world.gather(problem) if one]
    if problems:
        raise Unavailable(f"no NCCL communicator: {problems[0]} (NCCL_DEBUG=WARN says more)")
    return comm


class NcclTransport(GpuTransport):
    """See `Transport` for the methods; all ranks call `prepare` and `library` together.

    ``graph``: replay plans from captured graphs. ``cold``: rotate sets of buffers, so that no
    iteration finds its operands in the L2 cache. ``compare``: also measure iterations with and
    without graphs, without a gate. ``log``: NCCL's log, from which its choices are read. Raises
    Unavailable if no communicator can be made.
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
        self.said: dict[str, Json] = {}
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
        """See `GpuTransport.meet`: an all-reduce of one element."""
        at, stream = self._word.address, self.lane.stream.ptr
        return [self.queued(lambda: self.comm.allReduce(at, at, 1, FLOAT, SUM, stream))]

    def queued(self, call: Call) -> QueuedCall:
        """An NCCL call with the number of queue entries that it takes.

        A graph's launch hands its work to the proxy thread when the stream reaches it.
        """
        between = len(set(self.world.nodes)) > 1
        return QueuedCall(call, _ENTRIES_BETWEEN_NODES if between else _ENTRIES, _ENTRIES)

    def send(self, view: DeviceArray, peer: int) -> Call:
        """See `collectives.execution.gpu.program.Port`.

        Messages are sent as bytes, whatever the element type.
        """
        stream = self.lane.stream.ptr
        return partial(self.comm.send, view.address, view.nbytes, BYTES, peer, stream)

    def receive(self, view: DeviceArray, peer: int) -> Call:
        """See `collectives.execution.gpu.program.Port`."""
        stream = self.lane.stream.ptr
        return partial(self.comm.recv, view.address, view.nbytes, BYTES, peer, stream)

    def exchange(self, messages: list[Call]) -> Call:
        """See `collectives.execution.gpu.program.Port`: one group."""
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
        """See `Transport.prepare`."""
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
        self.said = {}
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
            self.said |= self._log.chosen()
        if self._compare:
            found = action.overhead()
            self.said |= {f"{name}_us": round(each * 1e6, 3) for name, each in found.items()}

    def _refused(self, what: str, why: str) -> None:
        """Report for the row and its record why a graph or a gate was not possible."""
        self.said[what] = why

    # -- groups

    def split(self, group: World) -> NcclTransport:
        """A transport for the ranks of ``group``. All ranks call this together.

        Uses ncclCommSplit if CuPy has it, otherwise a unique id for each group.
        """
        made = None
        if hasattr(self.comm, "commSplit"):
            # A group's colour is the rank number of its first member.
            color = group.broadcast(self.world.rank)
            made = self.comm.commSplit(color, group.rank)
        part = NcclTransport(
            group,
            self.device,
            self.nccl,
            graph=self._graph,
            cold=self.cold,
            compare=self._compare,
            deadline=self.lane.deadline,
            log=self._log,
            communicator=made,
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

    def _left(self) -> Any:
        """Detach and return the communicator.

        Graphs are closed first, because NCCL waits for that.
        """
        for action in list(self._actions):
            action.close()
        comm, self.comm = self.comm, None
        return comm

    def give_up(self) -> None:
        """Abort the communicator, so that kernels that wait for another rank end."""
        comm = self._left()
        if comm is not None:
            with suppress(RuntimeError):
                comm.abort()
        self._log.close()

    def close(self) -> None:
        """Close what was prepared here, and destroy the communicator."""
        if self.comm is not None:
            self.lane.wait()
        comm = self._left()
        if comm is not None:
            comm.destroy()
        self._word = self.device.wrap(0, 0, None)
        self.device.sweep()
        self._log.close()
