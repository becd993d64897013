"""MPI between GPU buffers: passed to a CUDA-aware MPI, or staged through the host.

Messages are persistent requests, as in the host's transport; additions are kernels. MPI does not
know streams, so every exchange first waits for the work on the stream.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from collectives.execution.gpu.device import Call, DeviceArray, GpuDevice
from collectives.execution.gpu.lane import Lane
from collectives.execution.gpu.program import bind, staging_bytes
from collectives.execution.gpu.transport import GpuTransport
from collectives.execution.mpi.calls import PersistentCalls
from collectives.execution.mpi.library import library_calls
from collectives.execution.mpi.transport import MOST_BYTES, TAGS
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.program import Program
from collectives.execution.transport import LibraryCall
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op


def takes_device_memory(mpi: Any) -> bool:
    """True if the MPI library reports that it accepts device memory.

    Open MPI and MPICH both report it by MPIX_Query_cuda_support; other libraries count as not.
    """
    try:
        query = ctypes.CDLL(mpi.__file__).MPIX_Query_cuda_support
    except (OSError, AttributeError):
        return False
    return bool(query())


class _DeviceAction(PersistentCalls):
    """Calls that enqueue work or exchange messages, then a wait for all of them."""

    divides = True  # an average is divided on the device

    def __init__(
        self, lane: Lane, calls: list[Call], requests: list[Any], moved: list[int], held: object
    ) -> None:
        super().__init__([partial(lane.enqueue, calls), lane.wait], requests, *moved, held=held)


class _Message(NamedTuple):
    """The requests of a message, and for staged messages the copy before or after them."""

    requests: list[Any]
    before: Call | None
    after: Call | None


class MpiDeviceTransport(GpuTransport):
    """The transport that sends GPUs' memory by MPI; see `Transport` for the methods.

    ``aware``: pass device memory to MPI; otherwise messages are staged in pinned host memory.
    """

    name = "mpi"
    has_library = True
    world: MpiWorld

    def __init__(
        self, world: MpiWorld, device: GpuDevice, *, aware: bool, deadline: float = 60.0
    ) -> None:
        where = "device" if aware else "staged through pinned host memory"
        super().__init__(world, device, {"buffers": where})
        self.aware = aware
        self.lane = Lane(device, world, deadline=deadline)
        self.remarks.append(
            "device memory is handed to MPI, which says that it takes it"
            if aware
            else "this MPI does not take device memory: messages go through pinned host memory"
        )
        self._requests: list[Any] = []
        self._tags: Counter[tuple[bool, int]] = Counter()
        self._moved = [0, 0]

    # -- methods of `Transport`

    def staging(self, program: Program, itemsize: int) -> int:
        """Bytes of device memory in which messages wait to be added."""
        return staging_bytes(program, itemsize)

    def prepare(self, program: Program, buffers: Any, op: Op | None) -> _DeviceAction:
        """Bind one rank's program to its buffers, see `Transport.prepare`."""
        itemsize = next(iter(buffers.values())).itemsize
        self._requests, self._moved = [], [0, 0]
        room = self.device.allocate(staging_bytes(program, itemsize))
        try:
            calls = bind(self, program, buffers, room, op)
        except BaseException:
            for request in self._requests:
                request.Free()
            raise
        return _DeviceAction(self.lane, calls, self._requests, self._moved, (buffers, room))

    def library(self, call: LibraryCall) -> _DeviceAction:
        """MPI's own collective on device memory, or on host memory with copies before and after."""
        buffers, op = call.buffers, call.op
        given, before, after = dict(buffers), list[Call](), list[Call]()
        plain = None if op is None else Op(op.name, op.ufunc)
        if not self.aware:
            given, before, after = self._mirrored(buffers)
        calls = library_calls(self.world, replace(call, buffers=given, op=plain), copy=self._copy)
        target = buffers[Buffer.OUT]
        if op is not None and op.mean and target.size:
            after.append(self.lane.kernels.divide(target, self.world.size))
        wait = [self.lane.wait] if before else []
        return _DeviceAction(
            self.lane, [*before, *wait, *calls, *after], [], [0, 0], (buffers, given)
        )

    def _mirrored(self, buffers: Any) -> tuple[dict[Buffer, Any], list[Call], list[Call]]:
        """Host memory for ``in`` and ``out``, overlapping if they do; copies of ``in`` and ``out``.

        ``in`` is copied to the host before the collective, ``out`` to the device after it, as an
        application would stage it. MPI writes all of ``out``, or in place ``in`` has the rest.
        """
        low = min(a.address for a in buffers.values())
        high = max(a.address + a.nbytes for a in buffers.values())
        apart = sum(a.nbytes for a in buffers.values()) <= high - low
        host: dict[Buffer, Any] = {}
        shared = None if apart else self.device.pinned(high - low)
        for buffer, array in buffers.items():
            start = array.address - low
            own = (
                self.device.pinned(array.nbytes)
                if shared is None
                else shared[start : start + array.nbytes]
            )
            host[buffer] = own.view(array.dtype)
        source, target = buffers[Buffer.IN], buffers[Buffer.OUT]
        before = self._enqueue(host[Buffer.IN].ctypes.data, source.address, source.nbytes)
        after = self._enqueue(target.address, host[Buffer.OUT].ctypes.data, target.nbytes)
        return host, [before], [after]

    def _enqueue(self, target: int, source: int, nbytes: int) -> Call:
        device, stream = self.device, self.lane.stream
        if not nbytes:
            return lambda: None
        return lambda: device.copy(target, source, nbytes, stream)

    def _copy(self, target: Any, source: Any) -> None:
        if isinstance(target, DeviceArray):
            self.device.copy(target.address, source.address, target.nbytes, self.lane.stream)
            self.lane.wait()
        else:
            np.copyto(target, source)

    def close(self) -> None:
        """Free memory that was released."""
        self.device.sweep()

    # -- methods of `Port`

    def send(self, view: DeviceArray, peer: int) -> _Message:
        """Prepare a message to another rank, see `Port.send`."""
        return self._message(view, peer, sends=True)

    def receive(self, view: DeviceArray, peer: int) -> _Message:
        """Prepare a message from another rank, see `Port.receive`."""
        return self._message(view, peer, sends=False)

    def _message(self, view: DeviceArray, peer: int, *, sends: bool) -> _Message:
        """The requests of a message, one for each piece, and its copy if it is staged on the host.

        Both ends cut messages alike.
        """
        self._moved[not sends] += view.nbytes
        memory: Any = view.view(np.uint8)
        copy = None
        if not self.aware:
            memory = self.device.pinned(view.nbytes)
            host, device = memory.ctypes.data, view.address
            target, source = (host, device) if sends else (device, host)
            copy = self._enqueue(target, source, view.nbytes)
        init = self.world.comm.Send_init if sends else self.world.comm.Recv_init
        requests = []
        for at in range(0, memory.nbytes, MOST_BYTES):
            # Requests may start in any order, so each has a tag of its own.
            self._tags[sends, peer] += 1
            piece = [memory[at : at + MOST_BYTES], self.world.mpi.BYTE]
            requests.append(init(piece, peer, self._tags[sends, peer] % TAGS))
        self._requests += requests
        return _Message(requests, copy if sends else None, None if sends else copy)

    def exchange(self, messages: list[_Message]) -> Call:
        """A call that exchanges prepared messages by persistent requests, see `Port.exchange`."""
        self._tags.clear()
        before = [m.before for m in messages if m.before is not None]
        after = [m.after for m in messages if m.after is not None]
        requests = [request for m in messages for request in m.requests]
        start, wait = self.world.mpi.Prequest.Startall, self.world.mpi.Request.Waitall

        def go() -> None:
            for copy in before:
                copy()
            self.lane.wait()
            start(requests)
            wait(requests)
            for copy in after:
                copy()

        return go
