"""One GPU as our transports use it: the only code that calls CuPy's runtime functions.

The module ``cupy`` is a parameter, so that tests can pass a stand-in on host memory. Streams,
events and graphs are CuPy's own objects (`collectives.execution.gpu.handles`). Times are seconds,
sizes bytes, addresses and stream handles plain integers, as NCCL wants them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unavailable, Unsupported
from collectives.execution.gpu.array import DeviceArray
from collectives.execution.gpu.compile import compiler
from collectives.execution.gpu.driver import driver
from collectives.execution.gpu.handles import CudaEvent, CudaGraph, Kernel, Stream
from collectives.execution.gpu.heap import heap

# cudaDeviceAttr numbers, the same in every CUDA version.
_MULTIPROCESSORS, _L2_BYTES, _MAJOR, _MINOR, _SHARED_IN_ALL, _RESERVED = 16, 38, 75, 76, 81, 111
# CUfunction_attribute numbers.
_REGISTERS, _CARVEOUT = 4, 9
# Shared memory of a block of our kernels at most (the executor's copy of its plan), and the blocks
# that a multiprocessor holds of them at once.
SHARED_BYTES, SHARED_BLOCKS = 8192, 2
# cudaError numbers.
_NOT_READY, _PEER_ALREADY = 600, 704
_UUID_BYTES = 16


class GpuDevice:
    """GPU number ``index`` of those that this process sees.

    A thread calls `use` before anything else on the device. Raises Unavailable when there is no
    such GPU.
    """

    def __init__(self, cupy: Any, index: int) -> None:
        self.xp, self.index = cupy, index
        self._runtime = cupy.cuda.runtime
        count = int(self._runtime.getDeviceCount())
        if not 0 <= index < count:
            raise Unavailable(f"no GPU {index}; this process sees {count}: 0 to {count - 1}")
        self._driver, self._heap = driver(cupy), heap(self._runtime, index)

    # -- what it is

    @property
    def name(self) -> str:
        """The maker's name, such as ``NVIDIA H200``."""
        return _text(self._properties()["name"])

    @property
    def uuid(self) -> str:
        """The identity that NVML knows it by: ``GPU-`` and 32 hexadecimal digits in five groups.

        CuPy gives a C string, which ends at the first zero byte; the driver gives all 16.
        """
        found = bytes(self._properties()["uuid"])[:_UUID_BYTES]
        if len(found) < _UUID_BYTES and self._driver is not None:
            found = self._driver.uuid(self.index) or found
        digits = found.ljust(_UUID_BYTES, b"\0").hex()
        cuts = (0, 8, 12, 16, 20, 32)
        return "GPU-" + "-".join(digits[a:b] for a, b in pairwise(cuts))

    @property
    def bus_id(self) -> str:
        """The PCI address, such as ``0000:07:00.0``."""
        return str(self._runtime.deviceGetPCIBusId(self.index)).lower()

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability: (9, 0) is Hopper."""
        return self._attribute(_MAJOR), self._attribute(_MINOR)

    @property
    def multiprocessors(self) -> int:
        """The number of streaming multiprocessors."""
        return self._attribute(_MULTIPROCESSORS)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the L2 cache."""
        return self._attribute(_L2_BYTES)

    def versions(self) -> dict[str, str]:
        """CuPy's version, the CUDA runtime's and the driver's, for records."""
        runtime = self._runtime
        return {
            "cupy": str(self.xp.__version__),
            "cuda_runtime": _cuda(int(runtime.runtimeGetVersion())),
            "cuda_driver": _cuda(int(runtime.driverGetVersion())),
        }

    def _properties(self) -> dict[str, Any]:
        found: dict[str, Any] = self._runtime.getDeviceProperties(self.index)
        return found

    def _attribute(self, number: int) -> int:
        return int(self._runtime.deviceGetAttribute(number, self.index))

    # -- the thread and the device

    def use(self) -> None:
        """Make this the calling thread's device."""
        self._runtime.setDevice(self.index)

    def synchronize(self) -> None:
        """Wait for all work on the device."""
        self._runtime.deviceSynchronize()

    def memory(self) -> tuple[int, int]:
        """Bytes free and in all; the calling thread must use this device."""
        free, total = self._runtime.memGetInfo()
        return int(free), int(total)

    # -- memory

    def allocate(self, nbytes: int) -> DeviceArray:
        """An allocation of its own (cudaMalloc, not CuPy's pool), let go of with its last view.

        Taking memory and giving it back may wait for the whole device. So this is called while no
        rank has work there that waits for another's, and it is here that what was let go of before
        is freed. Raises Unavailable when the device has too little left.
        """
        self._heap.sweep(self._runtime.free)
        try:
            address = int(self._runtime.malloc(max(1, nbytes)))
        except (self._runtime.CUDARuntimeError, MemoryError) as error:
            free, total = self.memory()
            raise Unavailable(
                f"GPU {self.index} cannot give {nbytes} bytes ({free} of {total} are free): {error}"
            ) from None
        return DeviceArray(self._runtime, address, nbytes, np.uint8, self._heap.hold(address))

    def sweep(self) -> None:
        """Free what was let go of; when, see `allocate`."""
        self._heap.sweep(self._runtime.free)

    def wrap(self, address: int, nbytes: int, owner: object) -> DeviceArray:
        """Memory that something else holds (a peer's, an opened handle's) as an array."""
        return DeviceArray(self._runtime, address, nbytes, np.uint8, owner)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked host memory, freed with its last view."""
        memory = self.xp.cuda.alloc_pinned_memory(max(1, nbytes))
        return np.frombuffer(memory, np.uint8, nbytes)

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        """Enqueue a copy between any two addresses, host or device."""
        kind = self._runtime.memcpyDefault
        self._runtime.memcpyAsync(target, source, nbytes, kind, stream.ptr)

    def fill(self, target: int, byte: int, nbytes: int, stream: Stream) -> None:
        """Enqueue setting every byte."""
        self._runtime.memsetAsync(target, byte, nbytes, stream.ptr)

    # -- other processes' and other GPUs' memory

    def ipc_handle(self, address: int) -> bytes:
        """The 64 bytes by which another process opens the allocation that begins at an address."""
        return bytes(self._runtime.ipcGetMemHandle(address))

    def ipc_open(self, handle: bytes) -> int:
        """The address of another process's allocation here; never one of this process's own."""
        return int(self._runtime.ipcOpenMemHandle(handle))

    def ipc_close(self, address: int) -> None:
        """Let go of an address from `ipc_open`."""
        self._runtime.ipcCloseMemHandle(address)

    def can_reach(self, other: int) -> bool:
        """Whether this GPU can read and write another's memory; its own it can."""
        if other == self.index:
            return True
        return bool(self._runtime.deviceCanAccessPeer(self.index, other))

    def reach(self, other: int) -> None:
        """Map another GPU's memory; again is no error.

        Raises Unsupported where there is no path.
        """
        if other == self.index:
            return
        if not self.can_reach(other):
            raise Unsupported(f"GPU {self.index} has no peer access to GPU {other}")
        try:
            self._runtime.deviceEnablePeerAccess(other)
        except self._runtime.CUDARuntimeError as error:
            if error.status != _PEER_ALREADY:
                raise

    # -- streams, events, graphs

    def stream(self) -> Stream:
        """A stream that does not wait for the default one."""
        stream: Stream = self.xp.cuda.Stream(non_blocking=True)
        return stream

    def idle(self, stream: Stream) -> bool:
        """Whether nothing is left in a stream's queue; raises CUDARuntimeError when work failed."""
        query = self._runtime.streamQuery if self._driver is None else self._driver.query
        status = int(query(stream.ptr))
        if status not in (0, _NOT_READY):
            raise self._runtime.CUDARuntimeError(status)
        return status == 0

    def event(self) -> CudaEvent:
        """An event that notes the time."""
        event: CudaEvent = self.xp.cuda.Event()
        return event

    def elapsed(self, start: CudaEvent, end: CudaEvent) -> float:
        """Seconds between two recorded, completed events."""
        return float(self.xp.cuda.get_elapsed_time(start, end)) / 1e3

    def capture(self, stream: Stream, work: Callable[[], None]) -> CudaGraph:
        """Capture what ``work`` enqueues on a stream as a graph, without running it.

        The stream is left out of capture also when ``work`` fails, whose error is raised.
        """
        capturing: Any = stream
        capturing.begin_capture()
        try:
            work()
        except BaseException:
            # A capture that the failure broke complains too; the failure itself is reported.
            with suppress(self._runtime.CUDARuntimeError):
                capturing.end_capture()
            raise
        graph: CudaGraph = capturing.end_capture()
        graph.upload(stream)  # so that the first launch is no slower than the next
        return graph

    # -- kernels

    def compile(
        self, source: str, names: Sequence[str], options: Sequence[str] = ()
    ) -> dict[str, Kernel]:
        """The ``extern "C"`` kernels of a CUDA C++ source by name, compiled by NVRTC for this GPU.

        Kernel arguments are integers (addresses among them: 8 bytes) or NumPy scalars. Loading may
        wait for the device, like `allocate`. Raises Unavailable where it does not compile.
        """
        cuda = self.xp.cuda
        module = cuda.Module()
        module.load(compiler(cuda.nvrtc).binary(source, options, self.capability))
        found: dict[str, Kernel] = {name: module.get_function(name) for name in names}
        for kernel in found.values():
            self.registers(kernel)  # loads it now, and not behind a closed gate
            self._carve(kernel)
        return found

    def registers(self, kernel: Kernel) -> int:
        """Registers of a thread of a kernel."""
        return int(self.xp.cuda.driver.funcGetAttribute(_REGISTERS, kernel.ptr))

    def resident(self, kernel: Kernel, threads: int) -> int:
        """Blocks of so many threads that a multiprocessor holds at once."""
        ask = self.xp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
        return int(ask(kernel.ptr, threads, 0))

    def _carve(self, kernel: Kernel) -> None:
        """Divide the memory of L1 and shared memory for all our kernels alike; the rest is L1's.

        A multiprocessor that is to be divided otherwise must be idle first, which it never is while
        a kernel on it waits for one that has still to start.
        """
        need = SHARED_BLOCKS * (SHARED_BYTES + self._attribute(_RESERVED))
        percent = -(-100 * need // self._attribute(_SHARED_IN_ALL))
        self.xp.cuda.driver.funcSetAttribute(kernel.ptr, _CARVEOUT, min(100, percent))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _cuda(number: int) -> str:
    """13020 is CUDA 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"
