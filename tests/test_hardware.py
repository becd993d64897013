"""On a real GPU, where there is one (pytest -m gpu): the facade, the kernels, NCCL, whole runs.

Everywhere else these are skipped. Many ranks on one GPU are run in processes of their own, since
NCCL reads its settings once.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from busbar.errors import RankFailure, Unavailable
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.gpu.kernels import FEWEST_FLOAT8
from collectives.execution.gpu.lane import Lane
from collectives.execution.gpu.take import load_nccl
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.ipc.plan import BLOCKS, compile_kernels
from collectives.execution.ipc.transport import IpcTransport
from collectives.execution.nccl.transport import NcclTransport
from collectives.execution.plan import Plan
from collectives.execution.transport import LibraryCall, Start
from collectives.schedule.catalogue import build, spec
from collectives.schedule.dtypes import DTYPES, FLOAT8, dtype
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import OPS, op, scale
from tests.conftest import Mpi, Run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def gpu(cupy: Any) -> GpuDevice:
    """The first GPU."""
    return GpuDevice(cupy, 0)


@pytest.fixture
def nccl(gpu: GpuDevice) -> Any:
    """CuPy's NCCL."""
    try:
        return load_nccl()
    except Unavailable as error:
        return pytest.skip(str(error))


def _alone(body: Any) -> None:
    run(1, body)


def test_memory_there_and_back(gpu: GpuDevice) -> None:
    """Rule: what is written to a device is read from it; bytes are set; slices share memory."""
    gpu.use()
    given = np.random.default_rng(1).integers(0, 256, 100_003).astype(np.uint8)
    array = gpu.allocate(given.size)
    array[:] = given
    assert np.array_equal(array.host(), given)
    array[7:1000][:] = 0xA5
    assert (
        set(array[7:1000].host().tolist()) == {0xA5}
        and array[:7].host().tolist() == given[:7].tolist()
    )
    assert gpu.uuid.startswith("GPU-") and gpu.bus_id.count(":") == 2
    assert gpu.cache_bytes > 0 and gpu.multiprocessors > 0 and gpu.memory()[0] > 0


@pytest.mark.parametrize("kind", (*DTYPES, *FLOAT8))
@pytest.mark.parametrize("name", OPS)
def test_kernels_give_what_numpy_gives(gpu: GpuDevice, kind: str, name: str) -> None:
    """Rule: one to nine sources, aligned, alike misaligned and not: as NumPy joins them."""
    of, joined = dtype(kind), op(name)
    if kind in FLOAT8 and gpu.capability < FEWEST_FLOAT8:
        pytest.skip("this GPU converts no 8-bit floats")

    def body(world: InprocWorld) -> None:
        lane = Lane(gpu, world)
        random = np.random.default_rng(2)
        for sources in (1, 3, 8, 9):
            for shift in (0, 1, 3):
                n = 10_007
                low, high = (1, 2) if name == "prod" or kind in FLOAT8 else (0, 6)
                top = high if sources < 8 or kind not in FLOAT8 else low + 1
                host = [random.integers(low, top, n).astype(of) for _ in range(sources + 1)]
                arrays = [gpu.allocate((n + 8) * of.itemsize).view(of) for _ in host]
                # The last source begins elsewhere than the others, when shifted at all.
                views = [a[shift : shift + n] for a in arrays[:-1]] + [arrays[-1][:n]]
                for view, values in zip(views, host, strict=True):
                    view[:] = values
                lane.enqueue(lane.kernels.reduce(views[0], views[0], views[1:], joined))
                wanted = host[0]
                for values in host[1:]:
                    wanted = joined.ufunc(wanted, values)
                if joined.mean:
                    lane.enqueue([lane.kernels.divide(views[0], 3)])
                    scale(wanted, 3)
                lane.wait()
                assert np.array_equal(views[0].host(), wanted), (sources, shift)

    _alone(body)


def test_a_gate_holds_a_stream_and_a_graph_replays(gpu: GpuDevice) -> None:
    """Rule: nothing passes a closed gate; a captured copy runs each time it is launched."""

    def body(world: InprocWorld) -> None:
        lane = Lane(gpu, world)
        source, target = gpu.allocate(1 << 20), gpu.allocate(1 << 20)
        source[:] = 1
        copy = [lambda: gpu.copy(target.address, source.address, source.nbytes, lane.stream)]
        graph = lane.capture(copy)
        for value in (2, 3):
            source[:] = value
            lane.close_gate()
            start = lane.event()
            graph.launch(lane.stream)
            end = lane.event()
            assert not gpu.idle(lane.stream)
            lane.open_gate()
            lane.wait()
            assert 0 < gpu.elapsed(start, end) < 1 and target[:1].host()[0] == value

    _alone(body)


@pytest.mark.parametrize("kind", ["float", "bfloat16", "half", "double"])
def test_subnormals_stay(gpu: GpuDevice, kind: str) -> None:
    """Rule: a type's smallest numbers add up, in the kernels between messages and the executor."""
    of = dtype(kind)
    tiny = np.arange(1, 1001).astype(np.uint16 if of.itemsize == 2 else f"u{of.itemsize}").view(of)

    def body(world: InprocWorld) -> None:
        transport = IpcTransport(world, gpu)
        lane = transport.lane
        source, target = (transport.allocate(tiny.nbytes).view(of) for _ in range(2))
        source[:] = tiny
        target[:] = tiny
        lane.enqueue(lane.kernels.reduce(target, target, [source], op("sum")))
        lane.wait()
        wanted = (tiny.astype(np.float64) * 2).astype(of)
        assert np.array_equal(target.host(), wanted)
        where: Any = (spec("allreduce"), transport, world.rank, source, target)
        plan = Plan(build("allreduce", "one_shot", world.size), *where, op("sum"), len(tiny))
        plan()
        assert np.array_equal(target.host(), wanted)
        world.barrier()
        transport.close()

    run(2, body)


def test_all_blocks_of_the_executor_are_resident(gpu: GpuDevice) -> None:
    """Rule: the driver holds as many blocks of each type at once as the host sizes grids by."""
    gpu.use()
    for kind in DTYPES:
        made = compile_kernels(gpu, dtype(kind), op("sum"))
        assert gpu.resident(made.program, made.threads) >= BLOCKS
        assert gpu.registers(made.program) > 0


def test_a_gate_that_opens_by_itself_is_an_error(gpu: GpuDevice) -> None:
    """Rule: a gate's own time ends it, and what stood behind it is not timed."""

    def body(world: InprocWorld) -> None:
        lane = Lane(gpu, world, deadline=0.2)
        lane.close_gate()
        with pytest.raises(RankFailure, match="gate opened by itself"):
            lane.wait(10.0)

    _alone(body)


def test_a_gpu_is_the_one_that_nvml_knows(gpu: GpuDevice) -> None:
    """Rule: UUIDs are NVML's, zero bytes among them."""
    nvml = pytest.importorskip("pynvml")
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByPciBusId(gpu.bus_id.encode())
    assert gpu.uuid == str(nvml.nvmlDeviceGetUUID(handle))


def test_nccl_alone(gpu: GpuDevice, nccl: Any) -> None:
    """Rule: one rank: plans and NCCL's own collective, eager and as graphs, times above nought."""

    def body(world: InprocWorld) -> None:
        transport = NcclTransport(world, gpu, nccl)
        what, n = spec("allreduce"), 1 << 20
        source, target = (transport.allocate(4 * n).view(np.float32) for _ in range(2))
        given = np.arange(n, dtype=np.float32)
        source[:] = given
        buffers: Any = {Buffer.IN: source, Buffer.OUT: target}
        action = transport.library(LibraryCall(what, buffers, op("sum"), n))
        where: Any = (what, transport, 0, source, target, op("sum"), n)
        plan = Plan(build("allreduce", "ring", 1), *where)
        for fires in (action, plan):
            target.view(np.uint8)[:] = 0xA5
            fires()
            assert min(fires.spans(10, Start(world.barrier)).seconds) > 0
            assert np.array_equal(target.host(), given)
            fires.close()
        transport.close()

    _alone(body)


def _right(done: Any) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Out of bounds values : 0 OK" in done.stdout


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_all_reduce_among_threads(gpu: GpuDevice, nccl: Any, ranks: int, run: Run) -> None:
    """Rule: every algorithm is right on 2 and 4 ranks as threads, one GPU being enough."""
    if nccl.get_version() < 23000:
        pytest.skip("NCCL takes threads on one GPU since 2.30")
    more = ["-b", "1K", "-e", "16M", "-f", "128", "-n", "5", "-A", "all", "-d", "half,float,int32"]
    command = [sys.executable, "-m", "bench.allreduce", "--threads", str(ranks), *more]
    _right(run(*command, "--transport", "nccl", "--oversubscribe-gpu"))


def test_every_all_reduce_among_processes(gpu: GpuDevice, nccl: Any, mpich: Mpi, run: Run) -> None:
    """Rule: the same as processes under an MPI, and the table says that one GPU is time-sliced."""
    more = ["-b", "1K", "-e", "1M", "-f", "32", "-n", "5", "-A", "all", "--oversubscribe-gpu"]
    program = [mpich.python, "-m", "bench.allreduce", "--transport", "nccl", *more]
    _right(run(mpich.mpirun, "-n", "2", *program))


def test_mpi_over_device_buffers(gpu: GpuDevice, mpich: Mpi, run: Run) -> None:
    """Rule: GPU buffers over an MPI that does not take them are staged, and right."""
    more = ["-b", "1K", "-e", "1M", "-f", "32", "-n", "5", "--oversubscribe-gpu"]
    buffers = ["--transport", "mpi", "--buffers", "device"]
    program = [mpich.python, "-m", "bench.allreduce", *buffers, *more]
    _right(run(mpich.mpirun, "-n", "2", *program))
