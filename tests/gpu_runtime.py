# ruff: noqa: D102, N802, N803, N815 -- the names are CuPy's
"""CuPy's runtime, driver and compiler modules over `tests.gpu_machine`, as strict as CuPy's."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from typing import Any

from tests.gpu_machine import CUDARuntimeError, Machine, Work, whole


class Runtime:
    """``cupy.cuda.runtime``."""

    CUDARuntimeError = CUDARuntimeError
    memcpyHostToDevice, memcpyDeviceToHost, memcpyDefault = 1, 2, 4

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

    def getDeviceProperties(self, device: int) -> dict[str, Any]:
        # A C string, as CuPy makes of what are 16 bytes.
        return {"name": b"Stand-in GPU", "uuid": self._m.uuids[device].split(b"\0")[0]}

    def deviceGetPCIBusId(self, device: int) -> str:
        return f"0000:{device + 7:02X}:00.0"

    def deviceGetAttribute(self, attribute: int, device: int) -> int:
        major, minor = self._m.capability
        found = {16: 4, 38: self._m.cache, 75: major, 76: minor, 81: 233472, 111: 1024}
        return found[attribute]

    def runtimeGetVersion(self) -> int:
        return 13020

    def driverGetVersion(self) -> int:
        return 13020

    def memGetInfo(self) -> tuple[int, int]:
        return self._m.total - self._m.used(self._m.device), self._m.total

    def deviceSynchronize(self) -> None:
        self._m.settle("cudaDeviceSynchronize")

    def streamQuery(self, stream: int) -> int:
        return self._m.query(stream)

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
        for address, is_device in ((target, kind == 1), (source, kind == 2)):
            if is_device and not self._m.on_device(address, nbytes):
                raise CUDARuntimeError(1, f"{nbytes} bytes at {address:#x} are not the device's")
        with self._m.lock:
            ctypes.memmove(target, source, nbytes)

    def memcpyAsync(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        whole(target, source, nbytes, kind, stream)
        self._m.push(stream, lambda: Work(lambda: self._copy(target, source, nbytes, kind)))

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


class Driver:
    """``cupy.cuda.driver``: what is asked of kernels."""

    def __init__(self, machine: Machine) -> None:
        self._m = machine
        self.carved: dict[int, int] = {}

    def funcGetAttribute(self, attribute: int, f: int) -> int:
        whole(attribute, f)
        self._m.settle("loading a kernel")
        return {1: self._m.shared_bytes, 4: self._m.registers}[attribute]

    def funcSetAttribute(self, f: int, attribute: int, value: int) -> None:
        whole(f, attribute, value)
        assert attribute == 9 and 0 < value <= 100
        self.carved[f] = value

    def occupancyMaxActiveBlocksPerMultiprocessor(
        self, func: int, blockSize: int, dynamicSMemSize: int
    ) -> int:
        whole(func, blockSize, dynamicSMemSize)
        return min(65536 // (self._m.registers * blockSize), 2048 // blockSize)


class NVRTCError(RuntimeError):
    """As CuPy's."""


class Nvrtc:
    """``cupy.cuda.nvrtc``: what is compiled is the source and the options, to be read again."""

    NVRTCError = NVRTCError
    archs = (75, 80, 89, 90, 100, 120)

    def __init__(self) -> None:
        self._programs: dict[int, tuple[str, tuple[str, ...]]] = {}

    def getVersion(self) -> tuple[int, int]:
        return 13, 5

    def getSupportedArchs(self) -> tuple[int, ...]:
        return self.archs

    def createProgram(
        self, src: str, name: str, headers: Sequence[str], include_names: Sequence[str]
    ) -> int:
        assert not headers and not include_names
        number = 1 + len(self._programs)
        self._programs[number] = src, ()
        return number

    def compileProgram(self, prog: int, options: Sequence[str]) -> None:
        source, _ = self._programs[prog]
        if "#include <" in source:
            raise NVRTCError("NVRTC_ERROR_COMPILATION (6)")
        assert not any(one.startswith("-ftz=true") for one in options), "subnormals become 0"
        assert sum(one.startswith("-arch=") for one in options) == 1
        self._programs[prog] = source, tuple(options)

    def getProgramLog(self, prog: int) -> str:
        return "busbar.cu(1): catastrophic error: cannot open source file\n\n1 error detected\n"

    def _made(self, prog: int, kind: str) -> bytes:
        source, options = self._programs[prog]
        assert any(one.startswith(f"-arch={kind}_") for one in options)
        return json.dumps([source, options]).encode()

    def getCUBIN(self, prog: int) -> bytes:
        return self._made(prog, "sm")

    def getPTX(self, prog: int) -> bytes:
        return self._made(prog, "compute")

    def destroyProgram(self, prog: int) -> None:
        del self._programs[prog]
