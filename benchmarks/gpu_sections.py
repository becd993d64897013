"""The sections of gpu_one.py in their order, with their time limits in seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gpu_processes as processes
import gpu_right as right
import gpu_speed as speed
import numpy as np
from gpu_page import Page
from gpu_right import MB, Sizes

from busbar.errors import Unavailable
from busbar.start import python
from collectives.execution.gpu import kernels
from collectives.execution.gpu.action import QUEUE
from collectives.execution.gpu.device import GpuDevice, compiler, driver
from collectives.execution.gpu.lane import Lane
from collectives.execution.gpu.take import load_nccl, version_text
from collectives.execution.inproc.world import run
from collectives.execution.ipc import plan as executor
from collectives.schedule.ops import op

__all__ = ["SECTIONS", "Section"]

HOME = Path(__file__).resolve().parents[1]
Run = Callable[[Page, Any, Sizes, Path, str], None]


class Section(NamedTuple):
    """``run(page, cupy, sizes, out, script)``, and its limits with all sizes and with few."""

    run: Run
    limit: float
    quick: float


# -- what there is


def probe(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Show the GPU, versions, headers, resources of our kernels, and a stream's queue length."""
    device = GpuDevice(cupy, 0)
    device.use()
    page.table("The machine", "", ("what", "found"))
    page.row("GPU", device.name)
    page.row("bytes of memory", device.memory()[1])
    page.row("compute capability", ".".join(map(str, device.capability)))
    page.row("multiprocessors", device.multiprocessors)
    page.row("bytes of L2", device.cache_bytes)
    page.row("driver", _nvml(lambda nvml: str(nvml.nvmlSystemGetDriverVersion())))
    for name, version in device.versions().items():
        page.row(name, version)
    page.row("NVRTC", ".".join(map(str, cupy.cuda.nvrtc.getVersion())))
    page.row("NVRTC compiles for", " ".join(map(str, cupy.cuda.nvrtc.getSupportedArchs())))
    page.row("CUDA headers", _headers(cupy))
    page.row("NCCL", _or_why(lambda: version_text(int(load_nccl().get_version()))))
    page.row("UUID", device.uuid)
    page.row("UUID by NVML", _nvml(lambda nvml: _uuid(nvml, device.bus_id)))
    page.row("streams are asked", "through libcuda" if driver(cupy) else "through CuPy")
    page.row("pidfd", hasattr(os, "pidfd_open"))
    page.row("Python", sys.version.split()[0])
    _kernels(page, cupy, device)
    _queue(page, device)


def _queue(page: Page, device: GpuDevice, most: int = 4096, slow_s: float = 0.1) -> None:
    """Count the launches behind a closed gate until enqueueing blocks.

    The gate opens by itself after a second, so a blocked launch takes that long.
    """
    page.table(
        "A stream's queue",
        f"Launches of an empty kernel behind a closed gate until one takes {slow_s * 1e3:g} ms or"
        f" more. Batches are held to {QUEUE} entries.",
        ("launches", "took (ms)"),
    )

    def body(world: Any) -> None:
        # A separate gate, which opens after a second, for the case that enqueueing blocks.
        lane = Lane(device, world)
        words = device.pinned(8).view(np.uint32)
        words[:] = 0
        empty = lane.kernels.divide(device.allocate(4).view(np.float32)[:0], 1)
        lane.enqueue([empty])
        lane.wait()
        with lane.stream:
            lane.kernels.gate(words[:1].ctypes.data, 1, 1.0, words[1:].ctypes.data)
        launches, took = 0, 0.0
        while launches < most and took <= slow_s:
            start = time.perf_counter()
            lane.enqueue([empty])
            launches, took = launches + 1, time.perf_counter() - start
        words[0] = 1
        lane.wait()
        page.row(launches if took > slow_s else f"over {most}", took * 1e3)
        if took > slow_s and launches <= QUEUE:
            page.fail(f"a stream's queue takes {launches} launches, and batches are of {QUEUE}")

    run(1, body)


def _kernels(page: Page, cupy: Any, device: GpuDevice) -> None:
    page.table(
        "Our kernels for float sum",
        "Blocks: of so many threads resident on a multiprocessor at once.",
        ("kernel", "registers", "threads", "blocks", "seconds to compile"),
    )
    kind = np.dtype(np.float32)
    start = time.monotonic()
    given = executor.options(kind, op("sum"))
    compiler(cupy.cuda.nvrtc).binary(executor.source(), given, device.capability)
    spent = time.monotonic() - start
    made = executor.compile_kernels(device, kind, op("sum"))
    registers, blocks = device.registers(made.program), device.resident(made.program, made.threads)
    page.row("executor", registers, made.threads, blocks, spent)
    names = ("reduce", "divide", "differ", "gate")
    found = device.compile(kernels.source(), names, kernels.options(kind, op("sum")))
    for name, one in found.items():
        page.row(name, device.registers(one), 512, device.resident(one, 512), "-")


def _or_why(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except Unavailable as error:
        return f"none: {error}"


def _headers(cupy: Any) -> str:
    find = getattr(cupy.cuda, "get_cuda_path", None)
    path = find() if find else None
    return f"in {path}" if path else "none, and none are needed"


def _nvml(ask: Callable[[Any], str]) -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        return ask(pynvml)
    except Exception as error:  # noqa: BLE001  (a figure's footnote: whatever fails is said instead)
        return f"unknown ({type(error).__name__}: {error})"


def _uuid(nvml: Any, bus_id: str) -> str:
    return str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode())))


# -- other people's commands


def _command(page: Page, out: Path, name: str, *command: str, good: tuple[int, ...] = (0,)) -> None:
    """Run a command of ours and print its output. Also stores the output and a row on its end.

    An exit status that is not in ``good`` is a failure of the section.
    """
    start = time.monotonic()
    with (out / f"{name}.txt").open("w") as kept, (out / f"{name}.txt.err").open("wb") as errors:
        process = subprocess.Popen(
            python(*command),
            stdout=subprocess.PIPE, stderr=errors, cwd=HOME, text=True, errors="replace",
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line)
            kept.flush()
            page.say(line.rstrip("\n"))
        status = process.wait()
    page.table(*_ENDED)
    page.row(name, status, time.monotonic() - start, " ".join(command))
    if status not in good:
        page.fail(f"{name} ended with exit status {status}")


_ENDED = (
    "How it ended",
    "What it printed is in NAME.txt beside this, its standard error in NAME.txt.err.",
    ("name", "exit status", "seconds", "command"),
)
_KERNELS, _IPC = "tests/test_hardware.py", "tests/collectives/test_ipc_gpu.py"
_EIGHT_RANKS = f"{_IPC}::test_every_algorithm_on_threads[8]"


def _tests(page: Page, out: Path, name: str, *which: str) -> None:
    """Run tests that need a GPU; each is named when it has ended."""
    _command(page, out, name, "pytest", "-m", "gpu or not gpu", "-v", *which)


def tests_kernels(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Test kernels, gates, NCCL alone and CuPy's names, without 8-bit types."""
    some = "memory or gate or alone" if len(sizes.large) < 2 else "not f8"
    _tests(page, out, "pytest-kernels", "-k", some, _KERNELS, "tests/test_cupy_names.py")


def tests_ipc(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Test the transport on peer memory, without 8 ranks."""
    some = ["-k", "vain or times"] if len(sizes.large) < 2 else ["--deselect", _EIGHT_RANKS]
    _tests(page, out, "pytest-ipc", *some, _IPC)


def tests_more(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Test 8-bit types, and 8 ranks."""
    few = len(sizes.large) < 2
    _tests(page, out, "pytest-float8", "-k", "f8 and sum" if few else "f8", _KERNELS)
    if not few:
        _tests(page, out, "pytest-8-ranks", _EIGHT_RANKS)


def topology(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Show the profiler's map of the machine, its findings, and the sampler while copies run."""
    _command(page, out, "topology", "topology")
    _command(page, out, "topology-json", "topology", "--json")
    _command(page, out, "check", "topology", "check", good=(0, 1))  # 1: it found something
    _sampled(page, cupy)


def _sampled(page: Page, cupy: Any, seconds: float = 3.0, nbytes: int = 64 * MB) -> None:
    from bench.run.sampler import Sampler
    from busbar.errors import ProbeError
    from topology.sources.nvml import gauge

    page.table("The sampler while copies run", "", ("figure", "found"))

    def body(world: Any) -> None:
        device = GpuDevice(cupy, 0)
        lane = Lane(device, world)
        a, b = device.allocate(nbytes), device.allocate(nbytes)
        try:
            sampler = Sampler(gauge(device.bus_id, device.uuid))
        except ProbeError as error:
            page.row("none", str(error))
            return
        sampler.begin()
        stop, copies = time.monotonic() + seconds, 0
        while time.monotonic() < stop:
            for _ in range(100):
                device.copy(b.address, a.address, nbytes, lane.stream)
            lane.wait()
            copies += 100
        for name, found in sampler.end(copies).items():
            page.row(name, found)
        sampler.close()

    run(1, body)


def tables(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Run the benchmark as users run it on one GPU, and store its records."""
    top = ["-e", "256M" if len(sizes.large) > 1 else "4M", "-b", "1M", "-f", "4", "-T", "120"]
    for name, more in (
        ("ipc2", ["--threads", "2", "--oversubscribe-gpu", "--transport", "ipc"]),
        ("ipc4", ["--threads", "4", "--oversubscribe-gpu", "--transport", "ipc"]),
        ("one", ["-g", "1", "--oversubscribe-gpu"]),
    ):
        kept = str(out / f"bench-{name}.jsonl")
        Path(kept).unlink(missing_ok=True)
        flags = [*more, *top, "--limit", "column", "--out", kept]
        _command(page, out, f"bench-{name}", "bench.allreduce", *flags)


# -- what stands in the other files


def threads(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Check results over ipc at a few sizes, before anything is timed."""
    right.right(page, cupy, sizes.some, sizes.ranks, ", few sizes")


def everything(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Check results over ipc at every size."""
    right.right(page, cupy, sizes.right, sizes.ranks)


def small(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Measure the latency of small all-reduces."""
    speed.small(page, cupy, sizes.small, sizes.ranks, sizes.repeats)


def two_shot(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Measure the bandwidth of large all-reduces."""
    speed.two_shot(page, cupy, sizes.large, sizes.ranks[:2], sizes.repeats)


def blocks(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Measure the bandwidth with fewer blocks."""
    speed.blocks(page, cupy, sizes.large[min(1, len(sizes.large) - 1)], sizes.ranks[:2])


def overhead(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Measure the time that a plan adds to moving bytes."""
    speed.overhead(page, cupy)


def baseline(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Measure NCCL on one rank."""
    speed.baseline(page, cupy, load_nccl(), sizes.large)


def among_processes(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Check results over ipc with processes as ranks."""
    processes.right(page, [script, "--process"], sizes.ranks)


def nccl_processes(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Check results over NCCL between two processes."""
    told = "NCCL before 2.30 takes each rank for a host of its own (NCCL_HOSTID), over sockets."
    processes.right(page, [script, "--process"], (2,), "nccl", told)


def nccl_threads(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Check results over NCCL between two threads, if this NCCL allows them."""
    right.right_over_nccl(page, cupy, load_nccl(), sizes.some, (2,))


SECTIONS: dict[str, Section] = {
    "probe": Section(probe, 60, 30),
    "threads": Section(threads, 120, 40),
    "small": Section(small, 90, 30),
    "two_shot": Section(two_shot, 180, 40),
    "blocks": Section(blocks, 120, 30),
    "overhead": Section(overhead, 90, 30),
    "baseline": Section(baseline, 90, 30),
    "tests_kernels": Section(tests_kernels, 300, 40),
    "tests_ipc": Section(tests_ipc, 300, 30),
    "tests_more": Section(tests_more, 400, 30),
    "right": Section(everything, 500, 50),
    "processes": Section(among_processes, 240, 40),
    "nccl_processes": Section(nccl_processes, 120, 30),
    "nccl_threads": Section(nccl_threads, 120, 30),
    "topology": Section(topology, 90, 20),
    "bench": Section(tables, 300, 30),
}
