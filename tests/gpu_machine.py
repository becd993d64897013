# ruff: noqa: D102
"""A machine with stand-in GPUs: device memory in host memory, streams, what waits for what.

Streams are queues that run in order when somebody waits or asks, never earlier, so that whoever
forgets to wait sees old bytes. What may wait for a whole device does (`Machine.settle`), and nobody
launches there meanwhile: memory taken or freed while a kernel waits for a rank that has still to
launch is found out. CuPy's modules are in `tests.gpu_runtime` and `tests.gpu_standin`.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tests.gpu_standin import Stream

Factory = Callable[[], "Item"]
ALIGN = 256
POISON = 0xEE


# Entries that a stream takes behind a closed gate before enqueueing blocks.
QUEUE = 1024
# Seconds after which whoever waits for a device is told that it never will be idle.
LONG_S = 8.0
NAMES = {
    1: "cudaErrorInvalidValue",
    2: "cudaErrorMemoryAllocation",
    100: "cudaErrorNoDevice",
    101: "cudaErrorInvalidDevice",
    400: "cudaErrorInvalidResourceHandle",
    600: "cudaErrorNotReady",
    700: "cudaErrorIllegalAddress",
    801: "cudaErrorNotSupported",
    900: "cudaErrorStreamCaptureUnsupported",
}


class CUDARuntimeError(RuntimeError):
    """As CuPy's: the number of the cudaError, and its name."""

    def __init__(self, status: int, text: str = "") -> None:
        self.status = status
        super().__init__(f"{NAMES.get(status, f'cudaError {status}')}: {text}")


class Item:
    """Something in a stream's queue."""

    entries = 1  # of the queue that it takes

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
    """Holds the queue until a word in pinned memory has reached a number, or its time is over."""

    def __init__(self, machine: Machine, words: list[NDArray[np.uint32]], number: int, ns: int):
        self._m, (self._word, self._late), self._number, self._ns = machine, words, number, ns
        self._start = 0

    @property
    def closed(self) -> bool:
        """Whether the host has still to open it."""
        return int(self._word[0]) < self._number

    def advance(self) -> bool:
        self._start = self._start or time.monotonic_ns()
        if self.closed:
            if time.monotonic_ns() - self._start < self._ns:
                return False
            self._late[0] = 1
        self._m.gates.append(self._m.now)
        return True


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
        self.uuids = [bytes([1 + gpu]) * 16 for gpu in range(gpus)]
        self.version = nccl
        self.lock = threading.RLock()
        self.here = threading.local()
        self.blocks: dict[int, tuple[NDArray[np.uint8], int, int]] = {}
        self.pinned: dict[int, int] = {}
        self.streams: dict[int, Stream] = {}
        self.cliques: dict[bytes, Any] = {}  # see tests/nccl_standin.py
        self.now = 0
        self.faults: dict[int, int] = {}
        # Each device's context: who waits for the device holds it, and who launches needs it.
        self.turns = [threading.RLock() for _ in range(gpus)]
        self.error = 0  # sticky, as CUDA's are
        self.stuck: list[str] = []
        self.deepest = 0  # entries that a queue has held behind a gate, at most
        self.gates: list[int] = []
        self.functions = 0
        self.graphs: WeakSet[Any] = WeakSet()
        self.registers, self.shared_bytes = 64, 8192
        self.captures = True
        self.launched: list[str] = []
        self.log: str | None = None

    @property
    def device(self) -> int:
        return getattr(self.here, "device", 0)

    def used(self, device: int) -> int:
        with self.lock:
            return sum(size for _, size, at in self.blocks.values() if at == device)

    def settle(self, what: str) -> None:
        """Wait for this thread's device, on which nobody launches meanwhile."""
        device, stop = self.device, time.monotonic() + LONG_S
        with self.turns[device]:
            while any(s.items for s in list(self.streams.values()) if s.device == device):
                self.pump()
                if time.monotonic() > stop:
                    self.stuck.append(what)
                    raise AssertionError(f"{what} waits for a kernel that waits for another rank")

    def query(self, stream: int) -> int:
        """The status of a stream, as cudaStreamQuery gives it."""
        self.pump()
        with self.lock:
            return self.error or (600 if self.streams[stream].items else 0)

    def malloc(self, size: int) -> int:
        self.settle("cudaMalloc")
        return self.take(size)

    def take(self, size: int) -> int:
        """Memory for the stand-in's own work."""
        with self.lock:
            if self.used(self.device) + size > self.total:
                raise CUDARuntimeError(2, "out of memory")
            raw = np.full(size + ALIGN, POISON, np.uint8)
            address = -(-raw.ctypes.data // ALIGN) * ALIGN
            self.blocks[address] = raw, size, self.device
            return address

    def free(self, address: int) -> None:
        self.settle("cudaFree")
        with self.lock:
            if address not in self.blocks:
                raise CUDARuntimeError(1, "freed what is not allocated")
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

    def push(self, stream: int, factory: Factory, user: object = None, entries: int = 1) -> None:
        """Into a queue; ``user``: a communicator that a graph then refers to.

        Behind a closed gate a full queue would block for ever: whoever fills it is told.
        """
        if stream == 0:
            raise CUDARuntimeError(400, "work on the default stream")
        queue = self.streams[stream]
        with self.turns[queue.device], self.lock:
            if self.error:
                raise CUDARuntimeError(self.error)
            if queue.capturing is not None:
                queue.capturing.append(factory)
                queue.users.add(user)
            else:
                item = factory()
                item.entries = entries
                queue.items.append(item)
                head = queue.items[0]
                if isinstance(head, Gate) and head.closed:
                    depth = sum(one.entries for one in queue.items)
                    self.deepest = max(self.deepest, depth)
                    if depth > QUEUE:
                        self._blocked(queue, head)

    def _blocked(self, queue: Stream, gate: Gate) -> None:
        """Enqueueing blocks until the gate's own time is over, which nobody should wait for."""
        self.stuck.append("enqueueing behind a gate")
        stop = time.monotonic() + LONG_S
        while queue.items and queue.items[0] is gate:
            self.pump()
            if time.monotonic() > stop:
                raise AssertionError("the queue behind a closed gate is full: blocked")

    def pump(self) -> None:
        """Advance all streams as far as they come."""
        with self.lock, np.errstate(all="ignore"):
            moved = True
            while moved:
                moved = False
                for stream in list(self.streams.values()):
                    moved |= self._advance(stream)

    def _advance(self, stream: Stream) -> bool:
        """One queue as far as it comes; an error ends all that is on the machine."""
        moved = False
        try:
            while stream.items and stream.items[0].advance():
                stream.items.popleft()
                self.now += 1
                moved = True
        except CUDARuntimeError as error:
            self.error = error.status
            for one in self.streams.values():
                one.items.clear()
        return moved

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
