# ruff: noqa: D102, N802 -- the names are CuPy's
"""Our GPU stand-in with what the ipc transport needs.

Memory that processes can map, and the CUDA executor: the host's build of the very same source.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from collectives.gpu import ipc_kernels
from collectives.gpu.ipc_kernels import ELEMENTS, OPERATIONS
from tests.gpu_standin import POISON, CUDARuntimeError, Cupy, Item, Machine, RawModule, Runtime

__all__ = ["IpcCupy", "IpcMachine", "library"]

HOME = Path(__file__).resolve().parents[2]
SOURCE = HOME / "tests" / "native" / "cuda_host.cpp"
BUILT = "BUSBAR_CUDA_HOST"
# Threads that stand in for a block's.
THREADS = 2
POISONED = 1 << 16
LONG_S = 30.0
NAP_S = 1e-4


@cache
def library() -> ctypes.CDLL:
    """The executor as the host's compiler builds it, once a session; `BUILT` finds it again."""
    if BUILT not in os.environ:
        folder = mkdtemp(prefix="busbar-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        built = Path(folder) / "cuda_host.so"
        command = ["g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        include = f"-I{HOME / 'native' / 'cuda'}"
        subprocess.run([*command, include, str(SOURCE), "-o", str(built), "-pthread"], check=True)
        os.environ[BUILT] = str(built)
    return ctypes.CDLL(os.environ[BUILT])


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
        self.peer_copies = 0

    def malloc(self, size: int) -> int:
        fd = os.memfd_create("gpu")
        os.ftruncate(fd, size)
        array = np.frombuffer(mmap.mmap(fd, size), np.uint8)
        array[:POISONED] = POISON
        address = int(array.ctypes.data)
        with self.lock:
            self.blocks[address], self.fds[address] = (array, size, self.device), fd
        return address

    def free(self, address: int) -> None:
        """Waits for all that is under way, as cudaFree does: a rank must not free in between."""
        stop = time.monotonic() + LONG_S
        while any(s.items for s in list(self.streams.values())) and time.monotonic() < stop:
            self.pump()
        assert time.monotonic() < stop, "memory was freed while a kernel waited for the one who did"
        super().free(address)
        os.close(self.fds.pop(address))

    def open(self, handle: bytes) -> int:
        pid, fd, size = struct.unpack("qqq40x", handle)
        if pid == os.getpid():
            raise CUDARuntimeError(201, "a handle cannot be opened in the process that made it")
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

    def memcpyPeerAsync(
        self, target: int, to_gpu: int, source: int, from_gpu: int, nbytes: int, stream: int
    ) -> None:
        assert 0 <= to_gpu < self._machine.gpus and 0 <= from_gpu < self._machine.gpus
        self._machine.peer_copies += 1
        super().memcpyPeerAsync(target, to_gpu, source, from_gpu, nbytes, stream)


class Executor:
    """``cupy.RawModule`` of ``native/cuda``."""

    def __init__(self, machine: Machine, options: tuple[str, ...]) -> None:
        self._m = machine
        given = dict(one[2:].split("=") for one in options if one.startswith("-D"))
        element, operation = given["BUSBAR_ELEMENT"], given["BUSBAR_OPERATION"]
        self._which = ELEMENTS.index(element), OPERATIONS.index(operation)

    def get_function(self, name: str) -> Callable[..., None]:
        kernel, which = getattr(library(), name), self._which

        def launch(grid: Sequence[int], block: Sequence[int], args: Sequence[Any]) -> None:
            assert all(isinstance(arg, np.uint64) for arg in args), "not 8 bytes each"
            words = [ctypes.c_uint64(int(arg)) for arg in args]
            stream = self._m.here.stack[-1].ptr
            self._m.launched.append(name)
            self._m.push(stream, lambda: Running(lambda: kernel(*which, grid[0], THREADS, *words)))

        return launch


class IpcCupy(Cupy):
    """The module ``cupy``."""

    def __init__(self, machine: IpcMachine) -> None:
        super().__init__(machine)
        library()  # built here, before ranks are threads
        self.machine = machine
        self.runtime = IpcRuntime(machine)

    def RawModule(  # type: ignore[override]
        self, *, code: str, options: tuple[str, ...] = ()
    ) -> RawModule | Executor:
        if code == ipc_kernels.source():
            return Executor(self.machine, options)
        return super().RawModule(code=code, options=options)
