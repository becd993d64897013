# ruff: noqa: D102, N802, N815 -- the names are CuPy's
"""A machine with GPUs that are not there: device memory in host memory, and CuPy's runtime on it.

Streams are queues that run in order when somebody waits or asks, never earlier, so that whoever
forgets to wait sees old bytes. The rest of CuPy is in `tests.gpu_standin`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tests.gpu_standin import Stream

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
    """Memory at an address, wherever it is, as bytes that can be written."""
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
