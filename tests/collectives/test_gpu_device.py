"""A GPU's memory, identity and compiled code, on stand-ins as strict as CUDA is."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import pytest

from busbar.errors import Unavailable
from collectives.execution.gpu import device as drivers
from collectives.execution.gpu.device import Compiler, Driver, GpuDevice, Heap
from collectives.execution.gpu.lane import Lane
from collectives.execution.inproc.world import InprocWorld, run
from tests.gpu_runtime import Nvrtc
from tests.gpu_standin import Cupy, Machine, alone

FLOAT = np.dtype(np.float32)


def test_memory_is_freed_only_when_more_is_taken() -> None:
    """Rule: letting go of memory frees nothing: cudaFree waits for kernels that wait for ranks."""
    machine = Machine(1)

    def body(world: InprocWorld) -> None:
        lane = Lane(GpuDevice(Cupy(machine), 0), world)
        mine = lane.device.allocate(64)
        world.barrier()
        if world.rank == 0:
            lane.close_gate()  # a kernel that waits for what another rank does
        world.barrier()
        if world.rank == 1:
            del mine
        world.barrier()
        lane.open_gate()
        lane.wait()
        world.barrier()
        before = machine.used(0)
        if world.rank == 1:
            lane.device.allocate(64)
            assert machine.used(0) <= before

    run(2, body)
    assert not machine.stuck


def test_a_uuid_with_a_zero_byte_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: 16 bytes, whatever they are: CuPy's C string is completed by the driver, or padded."""
    machine = Machine(2)
    machine.uuids[0] = bytes.fromhex("aabb00ccddeeff00112233445566778899"[:32])
    cupy = Cupy(machine)
    assert GpuDevice(cupy, 0).uuid == "GPU-aabb0000-0000-0000-0000-000000000000"
    assert GpuDevice(cupy, 1).uuid == "GPU-02020202-0202-0202-0202-020202020202"

    class Library:
        def cuDeviceGet(self, number: Any, index: ctypes.c_int) -> int:  # noqa: N802
            number._obj.value = index.value
            return 0

        def cuDeviceGetUuid_v2(self, found: Any, number: ctypes.c_int) -> int:  # noqa: N802
            found._obj[:] = machine.uuids[number.value]
            return 0

    assert Driver(Library()).uuid(0) == machine.uuids[0]
    monkeypatch.setitem(sys.modules, "cupy", cupy)  # type: ignore[arg-type]
    monkeypatch.setattr(drivers.ctypes, "CDLL", lambda name: Library())
    assert GpuDevice(cupy, 0).uuid == "GPU-aabb00cc-ddee-ff00-1122-334455667788"


def test_what_does_not_compile_is_our_error_in_one_line() -> None:
    """Rule: the compiler's first complaint, for which architecture; a header is never asked for."""
    with pytest.raises(Unavailable, match=r"do not compile for sm_90: .*cannot open source") as one:
        Compiler(Nvrtc()).binary("#include <cuda_runtime.h>\n", (), (9, 0))
    assert "\n" not in str(one.value)


def test_a_gpu_that_is_newer_than_the_compiler_gets_ptx() -> None:
    """Rule: code for the GPU itself where NVRTC knows it; else PTX of the newest before it."""
    made = Compiler(Nvrtc())
    assert b"-arch=sm_90" in made.binary("x", (), (9, 0))
    assert b"-arch=compute_120" in made.binary("x", (), (13, 0))
    with pytest.raises(Unavailable, match=r"compute capability 7\.0"):
        made.binary("x", (), (7, 0))


@pytest.mark.parametrize("problem", [ImportError("no libnvrtc"), RuntimeError("no NVRTC")])
def test_without_nvrtc_it_is_one_line(problem: Exception) -> None:
    """Rule: a compiler that is not there is said, whatever CuPy raises for it."""

    class Without(Nvrtc):
        def getSupportedArchs(self) -> tuple[int, ...]:  # noqa: N802
            raise problem

    with pytest.raises(Unavailable, match=f"NVRTC cannot be used: {problem}"):
        Compiler(Without()).binary("x", (), (9, 0))


def test_threads_compile_once() -> None:
    """Rule: ranks that are threads share what is compiled; each kind is compiled once."""
    counted = list[str]()

    class Counting(Nvrtc):
        def compileProgram(self, prog: int, options: Any) -> None:  # noqa: N802
            counted.append(str(options))
            super().compileProgram(prog, options)

    made = Compiler(Counting())
    run(4, lambda world: made.binary("x", ("-DA=1",), (9, 0)))
    assert len(counted) == 1


def test_differing_elements_are_counted() -> None:
    """Rule: every element that is not the tile's is counted, bit by bit, to the last one."""

    def body(lane: Lane) -> None:
        device = lane.device
        array, tile = device.allocate(4 * 1000).view(FLOAT), device.allocate(4 * 7).view(FLOAT)
        count = device.allocate(8).view(np.uint64)
        given = np.resize(np.arange(7, dtype=FLOAT), 1000)
        tile[:], count.view(np.uint8)[:] = given[:7], 0
        for wrong in ((), (0,), (3, 999), (7, 8, 500)):
            changed = given.copy()
            changed[list(wrong)] = -1
            array[:] = changed
            before = int(count.host()[0])
            lane.enqueue([lane.kernels.differ(array, tile, count)])
            lane.wait()
            assert int(count.host()[0]) - before == len(wrong)

    alone(body)


def test_two_threads_may_free_what_was_released() -> None:
    """Rule: each piece of memory is freed once, also if another rank's thread frees meanwhile."""

    class Taken(list[int]):
        """A list whose last item another thread takes after its length was read."""

        def pop(self, *_: object) -> int:
            if len(self) == 1:
                self.clear()
            return super().pop()

    heap = Heap()
    heap._released = Taken()
    owners = [heap.hold(address) for address in (1, 2, 3)]
    owners.clear()
    freed = list[int]()
    for _ in range(2):
        heap.sweep(freed.append)
        assert len(freed) == len(set(freed)) == 2
