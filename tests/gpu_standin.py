# ruff: noqa: D102, N802, N815 -- the names are CuPy's
"""GPUs that are not there: a module with CuPy's names and signatures over host memory.

Streams are queues that run in order when somebody waits or asks, never earlier, so that whoever
forgets to wait sees old bytes. Kernels are known by the names in our sources and computed by NumPy.
NCCL between these GPUs is in `tests.nccl_standin`.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from collectives.gpu import kernels

__all__ = ["Cupy", "Item", "Machine", "Runtime", "whole"]

Factory = Callable[[], "Item"]
ALIGN = 256
POISON = 0xEE


class CUDARuntimeError(RuntimeError):
    """As CuPy's: the number of the cudaError."""

    def __init__(self, status: int, text: str = "") -> None:
        self.status = status
        super().__init__(f"cudaError {status}: {text}")


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
        self.cliques: dict[bytes, Any] = {}  # see tests/nccl_standin.py
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
        with self.lock:
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
        with self.lock:  # other ranks allocate meanwhile
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
