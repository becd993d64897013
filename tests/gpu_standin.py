# ruff: noqa: D102, N802, N803, N815 -- the names are CuPy's
"""GPUs and NCCL that are not there: modules with CuPy's names and signatures over host memory.

Streams are queues that run in order when somebody waits or asks, never earlier, so that whoever
forgets to wait sees old bytes. Messages meet as NCCL's do: a group is done when all of it has found
its partner, and a message outside of a group holds its stream until then, so that a wrong group
deadlocks here as it does there. Kernels are known by the names in our sources and computed by NumPy.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from collectives.gpu import kernels

__all__ = ["Cupy", "Machine", "Nccl"]

Factory = Callable[[], "Item"]
ALIGN = 256
POISON = 0xEE


class CUDARuntimeError(RuntimeError):
    """As CuPy's: the number of the cudaError."""

    def __init__(self, status: int, text: str = "") -> None:
        self.status = status
        super().__init__(f"cudaError {status}: {text}")


class NcclError(RuntimeError):
    """As CuPy's: the number of the ncclResult."""

    def __init__(self, status: int, text: str = "") -> None:
        self.status = status
        super().__init__(f"NCCL_ERROR {status}: {text}")


class Item:
    """Something in a stream's queue."""

    def advance(self) -> bool:
        """Whether it is done, now; called when it is first in its queue."""
        raise NotImplementedError


class Work(Item):
    """Done at once."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def advance(self) -> bool:
        self._work()
        return True


class Gate(Item):
    """Holds the queue until a word in pinned memory has reached a number."""

    def __init__(self, word: NDArray[np.uint32], number: int) -> None:
        self._word, self._number = word, number

    def advance(self) -> bool:
        return int(self._word[0]) >= self._number


class Machine:
    """What all threads share: memory, streams, communicators, and who is on which device."""

    def __init__(
        self,
        gpus: int = 8,
        *,
        total: int = 8 << 30,
        cache: int = 512,
        capability: tuple[int, int] = (9, 0),
        nccl: int = 23203,
    ) -> None:
        self.gpus, self.total, self.cache, self.capability = gpus, total, cache, capability
        self.version = nccl
        self.lock = threading.RLock()
        self.here = threading.local()
        self.blocks: dict[int, tuple[NDArray[np.uint8], int, int]] = {}
        self.pinned: dict[int, int] = {}
        self.streams: dict[int, Stream] = {}
        self.cliques: dict[bytes, Clique] = {}
        self.now = 0
        self.faults: dict[int, int] = {}
        self.shared_gpus = False
        self.captures = True
        self.launched: list[str] = []
        self.log: str | None = None

    @property
    def device(self) -> int:
        return getattr(self.here, "device", 0)

    def used(self, device: int) -> int:
        return sum(size for _, size, at in self.blocks.values() if at == device)

    def malloc(self, size: int) -> int:
        with self.lock:
            if self.used(self.device) + size > self.total:
                raise CUDARuntimeError(2, "out of memory")
            raw = np.full(size + ALIGN, POISON, np.uint8)
            address = -(-raw.ctypes.data // ALIGN) * ALIGN
            self.blocks[address] = raw, size, self.device
            return address

    def free(self, address: int) -> None:
        with self.lock:
            if address not in self.blocks:
                raise CUDARuntimeError(1, "freed what is not allocated")
            self.pump()  # as cudaFree waits for the device
            del self.blocks[address]

    def on_device(self, address: int, nbytes: int) -> bool:
        return any(
            start <= address and address + nbytes <= start + size
            for start, (_, size, _) in self.blocks.items()
        )

    def view(self, address: int, n: int, dtype: Any = np.uint8) -> NDArray[Any]:
        """N elements at an address of the device's memory; whatever lies outside is an error."""
        kind = np.dtype(dtype)
        nbytes = n * kind.itemsize
        if n and not self.on_device(address, nbytes):
            raise CUDARuntimeError(700, f"{nbytes} bytes at {address:#x} are nobody's")
        return raw_bytes(address, nbytes).view(kind)

    def push(self, stream: int, factory: Factory) -> None:
        with self.lock:
            if stream == 0:
                raise CUDARuntimeError(400, "work on the default stream")
            queue = self.streams[stream]
            if queue.capturing is not None:
                queue.capturing.append(factory)
            else:
                queue.items.append(factory())

    def pump(self) -> None:
        """Advance all streams as far as they come."""
        with self.lock, np.errstate(all="ignore"):
            moved = True
            while moved:
                moved = False
                for stream in list(self.streams.values()):
                    while stream.items and stream.items[0].advance():
                        stream.items.popleft()
                        self.now += 1
                        moved = True

    def heads(self) -> list[Item]:
        return [stream.items[0] for stream in self.streams.values() if stream.items]


def raw_bytes(address: int, nbytes: int) -> NDArray[np.uint8]:
    if not nbytes:
        return np.empty(0, np.uint8)
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


def whole(*values: Any) -> None:
    """CuPy's signatures take C integers: anything else is a TypeError there, too."""
    for value in values:
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            raise TypeError(f"an integer is needed, not {value!r}")


class Runtime:
    """``cupy.cuda.runtime``."""

    CUDARuntimeError = CUDARuntimeError
    memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice, memcpyDefault = 1, 2, 3, 4

    def __init__(self, machine: Machine) -> None:
        self._m = machine

    def getDeviceCount(self) -> int:
        if not self._m.gpus:
            raise CUDARuntimeError(100, "no CUDA-capable device is detected")
        return self._m.gpus

    def setDevice(self, device: int) -> None:
        if not 0 <= device < self._m.gpus:
            raise CUDARuntimeError(101, "invalid device ordinal")
        self._m.here.device = device

    def getDevice(self) -> int:
        return self._m.device

    def getDeviceProperties(self, device: int) -> dict[str, Any]:
        return {"name": b"Stand-in GPU", "uuid": bytes([device]) * 16}

    def deviceGetPCIBusId(self, device: int) -> str:
        return f"0000:{device + 7:02X}:00.0"

    def deviceGetAttribute(self, attribute: int, device: int) -> int:
        major, minor = self._m.capability
        return {16: 4, 38: self._m.cache, 75: major, 76: minor}[attribute]

    def runtimeGetVersion(self) -> int:
        return 13020

    def driverGetVersion(self) -> int:
        return 13020

    def memGetInfo(self) -> tuple[int, int]:
        return self._m.total - self._m.used(self._m.device), self._m.total

    def deviceSynchronize(self) -> None:
        self._m.pump()

    def streamSynchronize(self, stream: int) -> None:
        assert stream == 0, "only the default stream is waited for by number"

    def malloc(self, size: int) -> int:
        return self._m.malloc(size)

    def free(self, address: int) -> None:
        self._m.free(address)

    def memcpy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        whole(target, source, nbytes, kind)
        self._copy(target, source, nbytes, kind)

    def _copy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        for address, is_device in ((target, kind in (1, 3)), (source, kind in (2, 3))):
            if is_device and not self._m.on_device(address, nbytes):
                raise CUDARuntimeError(1, f"{nbytes} bytes at {address:#x} are not the device's")
        with self._m.lock:
            ctypes.memmove(target, source, nbytes)

    def memcpyAsync(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        whole(target, source, nbytes, kind, stream)
        self._m.push(stream, lambda: Work(lambda: self._copy(target, source, nbytes, kind)))

    def memcpyPeerAsync(
        self, target: int, to_gpu: int, source: int, from_gpu: int, nbytes: int, stream: int
    ) -> None:
        whole(target, to_gpu, source, from_gpu, nbytes, stream)
        self._m.push(stream, lambda: Work(lambda: self._copy(target, source, nbytes, 3)))

    def memsetAsync(self, target: int, value: int, nbytes: int, stream: int) -> None:
        whole(target, value, nbytes, stream)

        def work() -> None:
            self._m.view(target, nbytes)[:] = value

        if stream == 0:
            work()
        else:
            self._m.push(stream, lambda: Work(work))

    def ipcGetMemHandle(self, address: int) -> bytes:
        if address not in self._m.blocks:
            raise CUDARuntimeError(1, "no allocation begins there")
        return address.to_bytes(64, "little")

    def ipcOpenMemHandle(self, handle: bytes, flags: int = 1) -> int:
        raise CUDARuntimeError(201, "a handle cannot be opened in the process that made it")

    def deviceCanAccessPeer(self, device: int, peer: int) -> int:
        return int(device != peer)

    def deviceEnablePeerAccess(self, peer: int) -> None:
        if peer == self._m.device:
            raise CUDARuntimeError(101, "invalid device")


class Stream:
    """``cupy.cuda.Stream``."""

    def __init__(self, machine: Machine, non_blocking: bool = False) -> None:
        assert non_blocking, "a stream that waits for the default one"
        self._m = machine
        self.items: deque[Item] = deque()
        self.capturing: list[Factory] | None = None
        with machine.lock:
            self.ptr = 0x5000 + 16 * len(machine.streams)
            machine.streams[self.ptr] = self

    def __enter__(self) -> Stream:
        self._stack().append(self)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._stack().pop() is self

    def _stack(self) -> list[Stream]:
        if not hasattr(self._m.here, "stack"):
            self._m.here.stack = []
        stack: list[Stream] = self._m.here.stack
        return stack

    def _no_capture(self) -> None:
        if self.capturing is not None:
            raise CUDARuntimeError(900, "operation not permitted when stream is capturing")

    @property
    def done(self) -> bool:
        self._no_capture()
        self._m.pump()
        with self._m.lock:
            return not self.items

    def synchronize(self) -> None:
        self._no_capture()
        while not self.done:
            pass

    def begin_capture(self, mode: int | None = None) -> None:
        self._no_capture()
        if not self._m.captures:
            raise CUDARuntimeError(801, "operation not supported")
        self.capturing = []

    def end_capture(self) -> Graph:
        assert self.capturing is not None
        captured, self.capturing = self.capturing, None
        return Graph(self._m, captured)


class Graph:
    """``cupy.cuda.Graph``."""

    def __init__(self, machine: Machine, captured: list[Factory]) -> None:
        self._m, self._captured, self.launches = machine, captured, 0

    def upload(self, stream: Stream | None = None) -> None:
        assert stream is not None

    def launch(self, stream: Stream | None = None) -> None:
        assert stream is not None
        self.launches += 1
        with self._m.lock:
            self._m.launched.append("graph")
            for factory in self._captured:
                self._m.push(stream.ptr, factory)


class Event:
    """``cupy.cuda.Event``."""

    def __init__(self, machine: Machine, block: bool = False, disable_timing: bool = False) -> None:
        self._m, self.timed = machine, not disable_timing
        self.ptr = id(self)
        self.when: int | None = None

    def record(self, stream: Stream | None = None) -> None:
        assert stream is not None, "an event on the default stream"
        stream._no_capture()
        self.when = None

        def work() -> None:
            self.when = self._m.now

        self._m.push(stream.ptr, lambda: Work(work))

    @property
    def done(self) -> bool:
        self._m.pump()
        return self.when is not None

    def synchronize(self) -> None:
        while not self.done:
            pass


def get_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds, at a microsecond for each thing that any stream does."""
    assert start.timed and end.timed
    if start.when is None or end.when is None:
        raise CUDARuntimeError(600, "not ready")
    return (end.when - start.when) / 1e3


UFUNCS = (np.add, np.multiply, np.minimum, np.maximum)


class RawModule:
    """``cupy.RawModule``: the kernels of `collectives.gpu.kernels`, by NumPy."""

    def __init__(self, machine: Machine, code: str, options: tuple[str, ...] = ()) -> None:
        assert code == kernels.source() and isinstance(options, tuple)
        self._m = machine
        defined = dict(one[2:].split("=") for one in options if one.startswith("-D"))
        names = {
            (stored, form): name for name, (stored, _, form) in reversed(kernels.TYPES.items())
        }
        name = names[defined["STORED"], int(defined["FORMAT"])]
        self._dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
        self._join = UFUNCS[int(defined["OPERATION"])]

    def get_function(self, name: str) -> Callable[..., None]:
        return {"reduce": self._reduce, "divide": self._divide, "gate": self._gate}[name]

    def _enqueue(self, name: str, factory: Factory) -> None:
        stack = getattr(self._m.here, "stack", [])
        if not stack:
            raise CUDARuntimeError(400, f"{name} on the default stream")
        self._m.launched.append(name)
        self._m.push(stack[-1].ptr, factory)

    def _reduce(self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any]) -> None:
        whole(*grid, *block, *args)
        out, first, *rest = args
        *sources, k, n, head, wide = rest
        assert len(sources) == kernels.SOURCES and 1 <= k <= kernels.SOURCES
        used = sources[:k]
        if wide:
            size = self._dtype.itemsize
            assert all((a + head * size) % 16 == 0 for a in (out, first, *used)) and head < n

        def work() -> None:
            total = self._m.view(first, n, self._dtype).copy()
            for source in used:
                total = self._join(total, self._m.view(source, n, self._dtype))
            self._m.view(out, n, self._dtype)[:] = total

        self._enqueue("reduce", lambda: Work(work))

    def _divide(self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any]) -> None:
        whole(*grid, *block, *args)
        out, by, n = args

        def work() -> None:
            array = self._m.view(out, n, self._dtype)
            ufunc = np.floor_divide if self._dtype.kind in "iu" else np.divide
            array[:] = ufunc(array, self._dtype.type(by))

        self._enqueue("divide", lambda: Work(work))

    def _gate(self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any]) -> None:
        whole(*grid, *block, *args)
        word, number, limit = args
        assert isinstance(number, np.uint32) and limit > 0
        assert any(at <= word < at + n for at, n in self._m.pinned.items()), "not pinned"
        flag = raw_bytes(word, 4).view(np.uint32)
        self._enqueue("gate", lambda: Gate(flag, int(number)))


class Cupy:
    """The module ``cupy``, as far as our device uses it."""

    __version__ = "14.2.0"

    def __init__(self, machine: Machine) -> None:
        self._m = machine
        self.cuda = self
        self.runtime = Runtime(machine)
        self.get_elapsed_time = get_elapsed_time

    def Stream(self, *, non_blocking: bool = False) -> Stream:
        return Stream(self._m, non_blocking)

    def Event(self, block: bool = False, disable_timing: bool = False) -> Event:
        return Event(self._m, block, disable_timing)

    def RawModule(self, *, code: str, options: tuple[str, ...] = ()) -> RawModule:
        return RawModule(self._m, code, options)

    def alloc_pinned_memory(self, size: int) -> NDArray[np.uint8]:
        memory = np.full(size, POISON, np.uint8)
        self._m.pinned[memory.ctypes.data] = size
        return memory


class Clique:
    """The ranks of one communicator."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.members: dict[int, Communicator] = {}
        self.devices: dict[int, int] = {}
        self.full = threading.Barrier(size)
        self.colors: dict[int, tuple[int, int]] = {}
        self.groups: dict[int, Clique] = {}


class Op:
    """One send or receive of a group."""

    def __init__(self, sends: bool, at: int, nbytes: int, peer: int) -> None:
        self.sends, self.at, self.nbytes, self.peer, self.done = sends, at, nbytes, peer, False


class Group(Item):
    """Messages that go at once: done when all are."""

    def __init__(self, machine: Machine, comm: Communicator, ops: list[tuple[Any, ...]]) -> None:
        self._m, self.comm, self.ops = machine, comm, [Op(*op) for op in ops]

    def advance(self) -> bool:
        if self.comm.gone:
            return True
        for op in self.ops:
            if op.sends and not op.done and self.first(True, op.peer) is op:
                self._deliver(op)
        return all(op.done for op in self.ops)

    def first(self, sends: bool, peer: int) -> Op | None:
        """The first message to or from a rank that has not met its partner yet."""
        found = (op for op in self.ops if op.sends == sends and op.peer == peer and not op.done)
        return next(found, None)

    def _deliver(self, op: Op) -> None:
        for head in self._m.heads():
            if not isinstance(head, Group) or head.comm.clique is not self.comm.clique:
                continue
            if head.comm.rank != op.peer:
                continue
            to = head.first(False, self.comm.rank)
            if to is None:
                continue
            if to.nbytes != op.nbytes:
                raise NcclError(4, f"{op.nbytes} bytes sent, {to.nbytes} expected")
            self._m.view(to.at, to.nbytes)[:] = self._m.view(op.at, op.nbytes)
            op.done = to.done = True
            return


class Collective(Item):
    """One rank's part of a collective: done when all ranks' parts are first in their streams."""

    def __init__(self, machine: Machine, comm: Communicator, name: str, args: tuple[Any, ...]):
        self._m, self.comm, self.name, self.args, self.done = machine, comm, name, args, False

    def advance(self) -> bool:
        if self.comm.gone or self.done:
            return True
        parts = [
            head
            for head in self._m.heads()
            if isinstance(head, Collective)
            and head.comm.clique is self.comm.clique
            and not head.done
        ]
        if len(parts) < self.comm.clique.size:
            return False
        parts.sort(key=lambda part: part.comm.rank)
        if len({(part.name, part.args[2:]) for part in parts}) > 1:
            raise NcclError(4, "ranks call different collectives")
        carry_out(self._m, self.name, [part.args for part in parts])
        for part in parts:
            part.done = True
        return True


NUMPY = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2"),
)


def carry_out(machine: Machine, name: str, parts: list[tuple[Any, ...]]) -> None:
    """A collective on all ranks' memory; what is aliased as NCCL allows gives the same."""
    count, datatype, *more = parts[0][2:]
    kind = np.dtype(getattr(ml_dtypes, NUMPY[datatype], None) or NUMPY[datatype])
    n = len(parts)

    def read(rank: int, elements: int) -> NDArray[Any]:
        return machine.view(parts[rank][0], elements, kind).copy()

    def write(rank: int, values: NDArray[Any]) -> None:
        machine.view(parts[rank][1], len(values), kind)[:] = values

    def joined(elements: int) -> NDArray[Any]:
        total = read(0, elements)
        for rank in range(1, n):
            ufunc = {0: np.add, 1: np.multiply, 2: np.maximum, 3: np.minimum, 4: np.add}[more[0]]
            total = ufunc(total, read(rank, elements))
        if more[0] == 4:
            divide = np.floor_divide if kind.kind in "iu" else np.divide
            total = divide(total, kind.type(n)).astype(kind)
        return total

    if name == "allReduce":
        total = joined(count)
        for rank in range(n):
            write(rank, total)
    elif name == "reduce":
        write(more[1], joined(count))
    elif name == "broadcast":
        values = read(more[0], count)
        for rank in range(n):
            write(rank, values)
    elif name == "allGather":
        values = np.concatenate([read(rank, count) for rank in range(n)])
        for rank in range(n):
            write(rank, values)
    elif name == "reduceScatter":
        total = joined(count * n)
        for rank in range(n):
            write(rank, total[rank * count : (rank + 1) * count])
    else:
        raise AssertionError(name)


class Communicator:
    """``cupy.cuda.nccl.NcclCommunicator``."""

    def __init__(self, nccl: Nccl, clique: Clique, rank: int) -> None:
        self._nccl, self._m, self.clique, self.rank = nccl, nccl.machine, clique, rank
        self.gone = ""
        with self._m.lock:
            clique.members[rank], clique.devices[rank] = self, self._m.device
        clique.full.wait(20)
        if len(set(clique.devices.values())) < clique.size and not self._m.shared_gpus:
            raise NcclError(5, "invalid usage (Duplicate GPU detected)")

    def _alive(self) -> None:
        if self.gone:
            raise NcclError(4, f"the communicator was {self.gone}")

    def _message(self, sends: bool, args: tuple[Any, ...]) -> None:
        at, count, datatype, peer, stream = args
        whole(*args)
        self._alive()
        if not 0 <= peer < self.clique.size or not 0 <= datatype < len(NUMPY) or count < 0:
            raise NcclError(4, f"invalid argument {args}")
        size = np.dtype(getattr(ml_dtypes, NUMPY[datatype], None) or NUMPY[datatype]).itemsize
        if not self._m.on_device(at, count * size):
            raise NcclError(4, "not the device's memory")
        self._nccl.message(self, (sends, at, count * size, peer), stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._message(True, (sendbuf, count, datatype, peer, stream))

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._message(False, (recvbuf, count, datatype, peer, stream))

    def _all(self, name: str, args: tuple[int, ...], stream: int) -> None:
        whole(*args, stream)
        self._alive()
        if self._nccl.depth:
            raise NcclError(5, "the stand-in takes no collectives inside a group")
        if self._m.log is not None:
            with Path(self._m.log).open("a") as log:
                log.write(
                    f"NCCL INFO {name}: 8 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..3}}\n"
                )
        self._m.push(stream, lambda: Collective(self._m, self, name, args))

    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        self._all("allReduce", (sendbuf, recvbuf, count, datatype, op), stream)

    def reduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int
    ) -> None:
        self._all("reduce", (sendbuf, recvbuf, count, datatype, op, root), stream)

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int
    ) -> None:
        self._all("broadcast", (sendbuff, recvbuff, count, datatype, root), stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        self._all("allGather", (sendbuf, recvbuf, count, datatype), stream)

    def reduceScatter(
        self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int
    ) -> None:
        self._all("reduceScatter", (sendbuf, recvbuf, recvcount, datatype, op), stream)

    def commSplit(self, color: int, key: int, config: object = None) -> Communicator:
        whole(color, key)
        self._alive()
        clique = self.clique
        clique.colors[self.rank] = color, key
        clique.full.wait(20)
        mine = sorted((k, rank) for rank, (c, k) in clique.colors.items() if c == color)
        with self._m.lock:
            group = clique.groups.setdefault(color, Clique(len(mine)))
        clique.full.wait(20)
        return Communicator(self._nccl, group, [rank for _, rank in mine].index(self.rank))

    def check_async_error(self) -> None:
        self._alive()
        if self.rank in self._m.faults:
            raise NcclError(self._m.faults[self.rank], "injected")

    def abort(self) -> None:
        self.gone = self.gone or "aborted"

    def destroy(self) -> None:
        self.gone = self.gone or "destroyed"


class Nccl:
    """The module ``cupy.cuda.nccl``."""

    available = True
    NcclError = NcclError

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.communicators: list[Communicator] = []

    @property
    def depth(self) -> int:
        return getattr(self.machine.here, "depth", 0)

    def get_version(self) -> int:
        return self.machine.version

    def get_unique_id(self) -> bytes:
        with self.machine.lock:
            self.machine.log = os.environ.get("NCCL_DEBUG_FILE")
            return len(self.machine.cliques).to_bytes(128, "little")

    def NcclCommunicator(
        self, ndev: int, commId: bytes, rank: int, config: object = None
    ) -> Communicator:
        whole(ndev, rank)
        assert isinstance(commId, bytes) and len(commId) == 128
        with self.machine.lock:
            clique = self.machine.cliques.setdefault(commId, Clique(ndev))
        comm = Communicator(self, clique, rank)
        self.communicators.append(comm)
        return comm

    def groupStart(self) -> None:
        self.machine.here.depth = self.depth + 1

    def groupEnd(self) -> None:
        if not self.depth:
            raise NcclError(5, "groupEnd without groupStart")
        self.machine.here.depth = self.depth - 1
        if not self.depth:
            held, self.machine.here.held = getattr(self.machine.here, "held", {}), {}
            for (comm, stream), ops in held.items():
                self._go(comm, ops, stream)

    def message(self, comm: Communicator, op: tuple[Any, ...], stream: int) -> None:
        """Into the group that is open, or alone."""
        if not self.depth:
            self._go(comm, [op], stream)
            return
        if not hasattr(self.machine.here, "held"):
            self.machine.here.held = {}
        self.machine.here.held.setdefault((comm, stream), []).append(op)

    def _go(self, comm: Communicator, ops: list[tuple[Any, ...]], stream: int) -> None:
        self.machine.push(stream, lambda: Group(self.machine, comm, ops))
