"""One GPU as our transports use it: the only code that calls CuPy's runtime functions.

The module ``cupy`` is a parameter, so that tests can pass a stand-in on host memory. Streams,
events, graphs and kernels are CuPy's own objects. Times are seconds, sizes bytes, addresses and
stream handles plain integers, as NCCL wants them.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from itertools import pairwise
from threading import Lock
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, finalize

import numpy as np
from numpy.typing import DTypeLike, NDArray

from busbar.errors import Unavailable, Unsupported

# CuPy's own objects: cupy.cuda.Event, Graph, Function and Stream. Of a stream ``done`` is not used:
# it takes an error for "not yet" (see `GpuDevice.idle`).
CudaEvent: TypeAlias = Any
CudaGraph: TypeAlias = Any
Kernel: TypeAlias = Any
Stream: TypeAlias = Any
Call = Callable[[], Any]

_LIBRARY = "libcuda.so.1"
_UUID_BYTES = 16


class Driver:
    """Calls of ``libcuda`` through ctypes, which releases the interpreter's lock meanwhile."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def query(self, stream: int) -> int:
        """The CUresult of a stream as a number: 0 done, 600 not ready (as in the CUDA runtime)."""
        return int(self._library.cuStreamQuery(ctypes.c_void_p(stream)))

    def uuid(self, index: int) -> bytes:
        """The 16 bytes of a GPU's UUID; empty if the driver does not report it."""
        number, uuid = ctypes.c_int(), (ctypes.c_ubyte * _UUID_BYTES)()
        status = self._library.cuDeviceGet(ctypes.byref(number), ctypes.c_int(index))
        status = status or self._library.cuDeviceGetUuid_v2(ctypes.byref(uuid), number)
        return b"" if status else bytes(uuid)


def driver(cupy: Any) -> Driver | None:
    """The driver API that ``cupy`` uses; None if libcuda is not found.

    Also None if ``cupy`` is a stand-in: its streams are no streams of the driver.
    """
    if sys.modules.get("cupy") is not cupy:
        return None
    try:
        return Driver(ctypes.CDLL(_LIBRARY))
    except OSError:
        return None


class _Held:
    """Owner of an allocation. When it is destroyed, the memory is queued for freeing."""


class Heap:
    """Device memory on one GPU that is no longer used, kept until it is safe to free it.

    cudaFree waits for the whole device. On a shared GPU, a kernel of another rank may be waiting
    for a launch by the rank that frees: a deadlock. Python may release an object at any time and
    in any thread, for instance behind a closed gate. So a release only queues the memory.
    """

    def __init__(self) -> None:
        self._released: list[int] = []

    def hold(self, address: int) -> object:
        """Create the owner of an allocation. The memory is released when the owner is destroyed."""
        held = _Held()
        # Not at exit: the driver takes the memory back, and its runtime may be gone already.
        finalize(held, self._released.append, address).atexit = False
        return held

    def sweep(self, free: Callable[[int], None]) -> None:
        """Free all released memory. Ranks that are threads may do so at the same time."""
        for _ in range(len(self._released)):
            try:
                address = self._released.pop()
            except IndexError:  # another thread has taken it
                return
            free(address)


@cache
def _heaps() -> WeakKeyDictionary[Any, dict[int, Heap]]:
    return WeakKeyDictionary()


def heap(runtime: Any, gpu: int) -> Heap:
    """A GPU's heap. All ranks of a process share it, so any of them frees what one released."""
    return _heaps().setdefault(runtime, {}).setdefault(gpu, Heap())


class DeviceArray:
    """``size`` elements of ``dtype`` from ``address`` on; slices and views share the memory.

    CuPy's own arrays lack types that we move (bfloat16 before CuPy 14, float8 in any), and their
    memory comes from a pool whose allocations cannot be shared through an IPC handle. There is no
    arithmetic; kernels compute on the address.

    ``owner`` keeps the memory alive. ``runtime`` is ``cupy.cuda.runtime``. Assigning to a slice and
    `host` copy through the host and return when the copy is complete; neither waits for
    non-blocking streams: synchronise those first.
    """

    def __init__(
        self, runtime: Any, address: int, size: int, dtype: DTypeLike, owner: object
    ) -> None:
        self._runtime, self._owner = runtime, owner
        self.address, self.size, self.dtype = address, size, np.dtype(dtype)

    def __len__(self) -> int:
        return self.size

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the interface; types that it cannot name appear as bytes.

        The stream is None: a consumer need not synchronise with any stream.
        """
        plain = self.dtype.kind in "iuf" and self.dtype.isbuiltin == 1
        return {
            "shape": (self.size if plain else self.nbytes,),
            "typestr": self.dtype.str if plain else "|u1",
            "data": (self.address, False),
            "version": 3,
            "stream": None,
        }

    def view(self, dtype: DTypeLike) -> DeviceArray:
        """The same bytes as elements of another type.

        Raises ValueError if the bytes are no whole number of elements.
        """
        kind = np.dtype(dtype)
        if self.nbytes % kind.itemsize:
            raise ValueError(f"{self.nbytes} bytes are no whole number of {kind.name}")
        return DeviceArray(
            self._runtime, self.address, self.nbytes // kind.itemsize, kind, self._owner
        )

    def __getitem__(self, where: slice) -> DeviceArray:
        start, stop = self._span(where)
        address = self.address + start * self.itemsize
        return DeviceArray(self._runtime, address, stop - start, self.dtype, self._owner)

    def __setitem__(self, where: slice, value: int | NDArray[Any]) -> None:
        """Copy a host array of the slice's length there, or set each byte to a value (0 to 255)."""
        part, runtime = self[where], self._runtime
        if not part.size:
            return
        if isinstance(value, int):
            if self.itemsize != 1:
                raise ValueError("only bytes can be set to one value; view as uint8 first")
            runtime.memsetAsync(part.address, value, part.nbytes, 0)
        else:
            source = np.ascontiguousarray(value, dtype=self.dtype)
            if source.shape != (part.size,):
                raise ValueError(f"{source.shape} elements do not fit {part.size}")
            runtime.memcpy(
                part.address, source.ctypes.data, part.nbytes, runtime.memcpyHostToDevice
            )
        # A copy from pageable memory may still be under way when the call returns.
        runtime.streamSynchronize(0)

    def host(self) -> NDArray[Any]:
        """A copy in host memory."""
        result = np.empty(self.size, self.dtype)
        if self.size:
            runtime = self._runtime
            kind = runtime.memcpyDeviceToHost
            runtime.memcpy(result.ctypes.data, self.address, self.nbytes, kind)
        return result

    def _span(self, where: slice) -> tuple[int, int]:
        start, stop, step = where.indices(self.size)
        if step != 1:
            raise ValueError("device memory is sliced without a step")
        return start, max(start, stop)


Capability = tuple[int, int]
_INCLUDE = re.compile(r'^#include "([a-z_]+\.cuh)"$', re.MULTILINE)


def cuda_source(name: str) -> str:
    """A file of ``native/cuda`` with its includes inlined once each: NVRTC has no include path.

    Raises Unavailable if the sources are not installed.
    """
    folder = files("native").joinpath("cuda")
    seen: set[str] = set()

    def text(name: str) -> str:
        try:
            source = folder.joinpath(name).read_text(encoding="utf-8")
        except OSError as error:
            raise Unavailable(f"the CUDA sources are not installed: {error}") from None
        return _INCLUDE.sub(lambda match: once(match[1]), source.replace("#pragma once\n", ""))

    def once(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        return text(name)

    return text(name)


class Compiler:
    """NVRTC (``cupy.cuda.nvrtc``) and its compiled binaries, shared by ranks that are threads.

    ``cupy.RawModule`` is not used. It needs a header of the CUDA runtime, which a machine with only
    a driver lacks, and it flushes subnormal floats to zero (``-ftz=true``).
    """

    def __init__(self, nvrtc: Any) -> None:
        self._nvrtc, self._lock = nvrtc, Lock()
        self._binaries: dict[tuple[str, tuple[str, ...], Capability], bytes] = {}

    def binary(self, source: str, options: Sequence[str], capability: Capability) -> bytes:
        """The compiled CUDA source for a compute capability: a cubin, or PTX where NVRTC is older.

        Raises Unavailable, in one line, when it does not compile or there is no NVRTC.
        """
        key = source, tuple(options), capability
        with self._lock:
            if key not in self._binaries:
                self._binaries[key] = self._compiled(*key)
            return self._binaries[key]

    def _compiled(self, source: str, options: tuple[str, ...], capability: Capability) -> bytes:
        nvrtc, own = self._nvrtc, 10 * capability[0] + capability[1]
        try:
            known = [arch for arch in nvrtc.getSupportedArchs() if arch <= own]
            program = nvrtc.createProgram(source, "busbar.cu", (), ())
        except (RuntimeError, ImportError, OSError) as error:
            raise Unavailable(f"NVRTC cannot be used: {_error_line(str(error))}") from None
        try:
            if not known:
                raise Unavailable(f"this NVRTC compiles nothing for compute capability {own / 10}")
            if own in known:
                nvrtc.compileProgram(program, (*options, f"-arch=sm_{own}"))
                return bytes(nvrtc.getCUBIN(program))
            nvrtc.compileProgram(program, (*options, f"-arch=compute_{max(known)}"))
            return bytes(nvrtc.getPTX(program))
        except RuntimeError as error:
            reason = _error_line(nvrtc.getProgramLog(program)) or str(error)
            raise Unavailable(f"our CUDA kernels do not compile for sm_{own}: {reason}") from None
        finally:
            nvrtc.destroyProgram(program)


@cache
def compiler(nvrtc: Any) -> Compiler:
    """This process's compiler; one for each NVRTC module."""
    return Compiler(nvrtc)


def _error_line(text: str) -> str:
    """The first line with "error" in it, or else the first line."""
    lines = [line.strip(" \0") for line in text.splitlines() if line.strip(" \0")]
    return next((line for line in lines if "error" in line), lines[0] if lines else "")


# cudaDeviceAttr numbers, the same in every CUDA version.
_MULTIPROCESSORS, _L2_BYTES, _MAJOR, _MINOR, _SHARED_IN_ALL, _RESERVED = 16, 38, 75, 76, 81, 111
# CUfunction_attribute numbers.
_REGISTERS, _CARVEOUT = 4, 9
# Most bytes of shared memory in a block of our kernels (the executor's copy of its plan), and the
# number of such blocks that are resident on a multiprocessor at once.
SHARED_BYTES, SHARED_BLOCKS = 8192, 2
# cudaError numbers.
_NOT_READY, _PEER_ALREADY = 600, 704


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
        """The product name, such as ``NVIDIA H200``."""
        return _text(self._properties()["name"])

    @property
    def uuid(self) -> str:
        """The UUID as NVML writes it: ``GPU-`` and 32 hexadecimal digits in five groups.

        CuPy gives a C string, which ends at the first zero byte; the driver gives all 16 bytes.
        """
        identity = bytes(self._properties()["uuid"])[:_UUID_BYTES]
        if len(identity) < _UUID_BYTES and self._driver is not None:
            identity = self._driver.uuid(self.index) or identity
        digits = identity.ljust(_UUID_BYTES, b"\0").hex()
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
        """Versions of CuPy, the CUDA runtime and the driver, for records."""
        runtime = self._runtime
        return {
            "cupy": str(self.xp.__version__),
            "cuda_runtime": _cuda(int(runtime.runtimeGetVersion())),
            "cuda_driver": _cuda(int(runtime.driverGetVersion())),
        }

    def _properties(self) -> dict[str, Any]:
        properties: dict[str, Any] = self._runtime.getDeviceProperties(self.index)
        return properties

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
        """Free and total bytes of the device, which must be the calling thread's current one."""
        free, total = self._runtime.memGetInfo()
        return int(free), int(total)

    # -- memory

    def allocate(self, nbytes: int) -> DeviceArray:
        """Allocate memory with cudaMalloc (not CuPy's pool). It is released with its last view.

        Allocating and freeing may wait for the whole device. So call this only while no rank has
        work on the device that waits for another rank. Memory released earlier is freed here.
        Raises Unavailable if the device has too little memory left.
        """
        self.sweep()
        try:
            address = int(self._runtime.malloc(max(1, nbytes)))
        except (self._runtime.CUDARuntimeError, MemoryError) as error:
            free, total = self.memory()
            raise Unavailable(
                f"GPU {self.index} cannot give {nbytes} bytes ({free} of {total} are free): {error}"
            ) from None
        return DeviceArray(self._runtime, address, nbytes, np.uint8, self._heap.hold(address))

    def sweep(self) -> None:
        """Free released memory. When this is safe, see `allocate`."""
        self._heap.sweep(self._runtime.free)

    def wrap(self, address: int, nbytes: int, owner: object) -> DeviceArray:
        """Memory with another owner (a peer's memory, an opened IPC handle's) as an array."""
        return DeviceArray(self._runtime, address, nbytes, np.uint8, owner)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked host memory, freed with its last view."""
        memory = self.xp.cuda.alloc_pinned_memory(max(1, nbytes))
        return np.frombuffer(memory, np.uint8, nbytes)

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        """Enqueue a copy between any two addresses, host or device."""
        kind = self._runtime.memcpyDefault
        self._runtime.memcpyAsync(target, source, nbytes, kind, stream.ptr)

    # -- memory of other processes and other GPUs

    def ipc_handle(self, address: int) -> bytes:
        """The IPC handle (64 bytes) with which another process opens an allocation."""
        return bytes(self._runtime.ipcGetMemHandle(address))

    def ipc_open(self, handle: bytes) -> int:
        """Map another process's allocation; returns its address here. Not for own handles."""
        return int(self._runtime.ipcOpenMemHandle(handle))

    def ipc_close(self, address: int) -> None:
        """Unmap an address from `ipc_open`."""
        self._runtime.ipcCloseMemHandle(address)

    def can_reach(self, other: int) -> bool:
        """True if this GPU is GPU number ``other``, or can read and write its memory."""
        if other == self.index:
            return True
        return bool(self._runtime.deviceCanAccessPeer(self.index, other))

    def reach(self, other: int) -> None:
        """Map another GPU's memory; mapping it twice is no error.

        Raises Unsupported if there is no peer access.
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
        """A stream that does not synchronise with the default stream."""
        return self.xp.cuda.Stream(non_blocking=True)

    def idle(self, stream: Stream) -> bool:
        """True if nothing is left in the stream's queue. Raises CUDARuntimeError if work failed."""
        query = self._runtime.streamQuery if self._driver is None else self._driver.query
        status = int(query(stream.ptr))
        if status not in (0, _NOT_READY):
            raise self._runtime.CUDARuntimeError(status)
        return status == 0

    def event(self) -> CudaEvent:
        """A new event that records the time."""
        return self.xp.cuda.Event()

    def elapsed(self, start: CudaEvent, end: CudaEvent) -> float:
        """Seconds between two recorded, completed events."""
        return float(self.xp.cuda.get_elapsed_time(start, end)) / 1e3

    def capture(self, stream: Stream, work: Callable[[], None]) -> CudaGraph:
        """Capture what ``work`` enqueues on a stream as a graph, without running it.

        If ``work`` fails, capturing ends and the error is raised.
        """
        stream.begin_capture()
        try:
            work()
        except BaseException:
            # A capture that the failure broke complains too; the failure itself is reported.
            with suppress(self._runtime.CUDARuntimeError):
                stream.end_capture()
            raise
        graph = stream.end_capture()
        graph.upload(stream)  # so that the first launch is no slower than the next
        return graph

    # -- kernels

    def compile(
        self, source: str, names: Sequence[str], options: Sequence[str] = ()
    ) -> dict[str, Kernel]:
        """Compile ``extern "C"`` kernels of a CUDA C++ source for this GPU; returns them by name.

        Kernel arguments are integers (an address is one of 8 bytes) or NumPy scalars. Loading may
        wait for the device, like `allocate`. Raises Unavailable if it does not compile.
        """
        cuda = self.xp.cuda
        module = cuda.Module()
        module.load(compiler(cuda.nvrtc).binary(source, options, self.capability))
        kernels: dict[str, Kernel] = {name: module.get_function(name) for name in names}
        for kernel in kernels.values():
            self.registers(kernel)  # loads it now, and not behind a closed gate
            self._carve(kernel)
        return kernels

    def registers(self, kernel: Kernel) -> int:
        """Registers per thread of a kernel."""
        return int(self.xp.cuda.driver.funcGetAttribute(_REGISTERS, kernel.ptr))

    def resident(self, kernel: Kernel, threads: int) -> int:
        """Blocks of ``threads`` threads that are resident on a multiprocessor at once."""
        ask = self.xp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
        return int(ask(kernel.ptr, threads, 0))

    def _carve(self, kernel: Kernel) -> None:
        """Set the same split between shared memory and L1 cache for all our kernels.

        A multiprocessor must be idle before its split can change. If a kernel on it waits for
        another one that has still to start and needs another split, both wait for ever.
        """
        need = SHARED_BLOCKS * (SHARED_BYTES + self._attribute(_RESERVED))
        percent = -(-100 * need // self._attribute(_SHARED_IN_ALL))
        self.xp.cuda.driver.funcSetAttribute(kernel.ptr, _CARVEOUT, min(100, percent))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _cuda(number: int) -> str:
    """CUDA's version as text: 13020 is 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"
