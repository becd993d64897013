# ruff: noqa: D102, N802 -- the names are CuPy's
"""Our GPU stand-in with what the ipc transport needs.

Memory that processes can map, and the CUDA executor: the host's build of the very same source.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from collectives.execution.gpu.device import GpuDevice
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.ipc.transport import IpcTransport
from tests.gpu_runtime import Runtime
from tests.gpu_standin import POISON, CUDARuntimeError, Cupy, Item, Machine, Module, library

# Threads that stand in for a block's.
THREADS = 2
POISONED = 1 << 16
NAP_S = 1e-4


class Running(Item):
    """A launch that runs beside all others from when it is first in its stream."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, daemon=True)
        self._begun = False

    def advance(self) -> bool:
        if not self._begun:
            self._begun = True
            self._thread.start()
        # Whoever asks again and again would leave the launch no time.
        self._thread.join(NAP_S)
        return not self._thread.is_alive()


class IpcMachine(Machine):
    """Its memory lies in files, so that other processes can map it by a handle."""

    def __init__(self, gpus: int = 8, **given: Any) -> None:
        super().__init__(gpus, **given)
        self.fds: dict[int, int] = {}
        self.opened: dict[int, object] = {}

    def malloc(self, size: int) -> int:
        self.settle("cudaMalloc")
        fd = os.memfd_create("gpu")
        os.ftruncate(fd, size)
        array = np.frombuffer(mmap.mmap(fd, size), np.uint8)
        array[:POISONED] = POISON
        address = int(array.ctypes.data)
        with self.lock:
            self.blocks[address], self.fds[address] = (array, size, self.device), fd
        return address

    def free(self, address: int) -> None:
        # Taken first: another rank's thread may get the same address as soon as it is free.
        fd = self.fds.pop(address, -1)
        super().free(address)
        os.close(fd)

    def open(self, handle: bytes) -> int:
        pid, fd, size = struct.unpack("qqq40x", handle)
        if pid == os.getpid():
            raise CUDARuntimeError(201, "a handle cannot be opened in the process that made it")
        self.settle("cudaIpcOpenMemHandle")
        try:
            here = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
        except OSError as error:
            raise CUDARuntimeError(1, f"invalid value ({error.strerror})") from None
        array = np.frombuffer(mmap.mmap(here, size), np.uint8)
        os.close(here)
        address = int(array.ctypes.data)
        with self.lock:
            self.blocks[address] = array, size, -1
        return address

    def close(self, address: int) -> None:
        self.settle("cudaIpcCloseMemHandle")
        with self.lock:
            assert self.blocks.pop(address)[2] == -1


class IpcRuntime(Runtime):
    """``cupy.cuda.runtime`` with handles that work."""

    def __init__(self, machine: IpcMachine) -> None:
        super().__init__(machine)
        self._machine = machine

    def ipcGetMemHandle(self, address: int) -> bytes:
        size = self._machine.blocks[address][1]
        return struct.pack("qqq40x", os.getpid(), self._machine.fds[address], size)

    def ipcOpenMemHandle(self, handle: bytes, flags: int = 1) -> int:
        return self._machine.open(handle)

    def ipcCloseMemHandle(self, address: int) -> None:
        self._machine.close(address)


class IpcModule(Module):
    """``cupy.cuda.Module`` of the executor, too."""

    def loaded(self, code: str, defined: dict[str, str]) -> None:
        """See `Module.loaded`."""
        super().loaded(code, defined)
        self._threads = int(defined.get("BUSBAR_THREADS", 0))

    def launcher(self, name: str) -> Callable[..., None]:
        """The kernel of that name."""
        if name != "busbar_program":
            return super().launcher(name)
        which, kernel = self._which, library().busbar_program

        def launch(grid: Sequence[int], block: Sequence[int], args: Sequence[Any]) -> None:
            assert all(isinstance(arg, np.uint64) for arg in args), "not 8 bytes each"
            assert block[0] <= self._threads, "more threads than the kernel's bounds"
            words = [ctypes.c_uint64(int(arg)) for arg in args]
            everyone = grid[0], THREADS
            self._enqueue(name, lambda: Running(lambda: kernel(*which, *everyone, *words)))

        return launch


class IpcCupy(Cupy):
    """The module ``cupy``."""

    def __init__(self, machine: IpcMachine) -> None:
        super().__init__(machine)
        self.machine = machine
        self.runtime = IpcRuntime(machine)

    def Module(self) -> IpcModule:
        """See `IpcModule`."""
        return IpcModule(self.machine)


def ranks(
    body: Callable[[InprocWorld, IpcTransport], None],
    nranks: int = 2,
    machine: IpcMachine | None = None,
    *,
    deadline: float = 60.0,
    **given: Any,
) -> IpcMachine:
    """Run a body on ranks that share a GPU, until nothing of theirs is left to free."""
    machine = machine or IpcMachine(1)
    cupy = IpcCupy(machine)

    def rank(world: InprocWorld) -> None:
        body(world, IpcTransport(world, GpuDevice(cupy, 0), deadline=deadline, **given))

    run(nranks, rank, deadline=200)
    gc.collect()
    GpuDevice(cupy, 0).sweep()
    assert not machine.stuck
    return machine
