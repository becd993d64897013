"""The sections of gpu_one.py in their order, with the seconds that each may take."""

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
from collectives.execution.gpu.compile import compiler
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.gpu.driver import driver
from collectives.execution.gpu.lane import Lane
from collectives.execution.gpu.load import load_nccl, version_text
from collectives.execution.inproc.world import run
from collectives.execution.ipc import kernels as ipc_kernels
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
    """GPU, versions, headers, and what our kernels take of a multiprocessor."""
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


def _kernels(page: Page, cupy: Any, device: GpuDevice) -> None:
    page.table(
        "Our kernels for float sum",
        "Blocks: of so many threads resident on a multiprocessor at once.",
        ("kernel", "registers", "threads", "blocks", "seconds to compile"),
    )
    kind = np.dtype(np.float32)
    start = time.monotonic()
    given = ipc_kernels.options(kind, op("sum"))
    compiler(cupy.cuda.nvrtc).binary(ipc_kernels.source(), given, device.capability)
    spent = time.monotonic() - start
    made = ipc_kernels.compile_kernels(device, kind, op("sum"))
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


def _command(page: Page, out: Path, name: str, *command: str) -> None:
    """A command of ours; all that it says is kept, and a row of how it ended."""
    start = time.monotonic()
    with (out / f"{name}.txt").open("wb") as said, (out / f"{name}.txt.err").open("wb") as errors:
        status = subprocess.run(
            python(*command), stdout=said, stderr=errors, cwd=HOME, check=False
        ).returncode
    page.row(name, status, time.monotonic() - start, " ".join(command))


def _commands(page: Page, title: str) -> None:
    told = "What each says is in NAME.txt beside this, its standard error in NAME.txt.err."
    page.table(title, told, ("name", "exit status", "seconds", "command"))


def tests(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """The tests that need a GPU."""
    _commands(page, "Tests on a GPU")
    some = ["-k", "memory or gate or alone or aligned"] if len(sizes.large) < 2 else []
    where = [
        "tests/test_hardware.py",
        "tests/collectives/test_ipc_gpu.py",
        "tests/test_cupy_names.py",
    ]
    _command(page, out, "pytest", "pytest", "-m", "gpu or not gpu", "-q", *some, *where)


def topology(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """The machine as the profiler maps it, its findings, and the sampler while copies run."""
    _commands(page, "The machine as NVML tells it")
    _command(page, out, "topology", "topology")
    _command(page, out, "topology-json", "topology", "--json")
    _command(page, out, "check", "topology", "check")
    _sampled(page, cupy)


def _sampled(page: Page, cupy: Any, seconds: float = 3.0, nbytes: int = 64 * MB) -> None:
    from bench.run.sampler import Sampler
    from busbar.errors import ProbeError
    from topology.sources.nvml_state import gauge

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
    """The benchmark as people run it on one GPU, its records kept."""
    _commands(page, "The benchmark on one GPU")
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
    """Right over ipc, a few sizes: before anything is timed."""
    right.right(page, cupy, sizes.some, sizes.ranks, ", few sizes")


def everything(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Right over ipc at every size."""
    right.right(page, cupy, sizes.right, sizes.ranks)


def small(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """The latency of small all-reduces."""
    speed.small(page, cupy, sizes.small, sizes.ranks, sizes.repeats)


def two_shot(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """The bandwidth of large ones."""
    speed.two_shot(page, cupy, sizes.large, sizes.ranks[:2], sizes.repeats)


def overhead(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """What a plan costs beside its bytes."""
    speed.overhead(page, cupy)


def baseline(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """NCCL on one rank."""
    speed.baseline(page, cupy, load_nccl(), sizes.large)


def among_processes(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Right over ipc among processes."""
    processes.right(page, [script, "--process"], sizes.ranks)


def nccl_processes(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Right over NCCL between two processes."""
    told = "NCCL before 2.30 takes each rank for a host of its own (NCCL_HOSTID), over sockets."
    processes.right(page, [script, "--process"], (2,), "nccl", told)


def nccl_threads(page: Page, cupy: Any, sizes: Sizes, out: Path, script: str) -> None:
    """Right over NCCL between two threads, where it takes them."""
    right.right_over_nccl(page, cupy, load_nccl(), sizes.some, (2,))


SECTIONS: dict[str, Section] = {
    "probe": Section(probe, 60, 30),
    "tests": Section(tests, 400, 60),
    "threads": Section(threads, 120, 40),
    "small": Section(small, 90, 30),
    "two_shot": Section(two_shot, 180, 40),
    "overhead": Section(overhead, 90, 30),
    "baseline": Section(baseline, 90, 30),
    "right": Section(everything, 500, 60),
    "processes": Section(among_processes, 240, 50),
    "nccl_processes": Section(nccl_processes, 120, 30),
    "nccl_threads": Section(nccl_threads, 120, 30),
    "topology": Section(topology, 90, 20),
    "bench": Section(tables, 300, 30),
}
