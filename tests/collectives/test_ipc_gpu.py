"""The ipc transport on a real GPU, where there is one (pytest -m gpu); skipped everywhere else."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from busbar.errors import RankFailure
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.ipc.transport import IpcTransport
from collectives.execution.transport import Start
from tests.conftest import REPO

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture
def right(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark's judge of results."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    monkeypatch.syspath_prepend(str(REPO / "benchmarks"))
    return importlib.import_module("gpu_right")


@pytest.mark.parametrize("nranks", [1, 2, 3, 4, 8])
def test_every_algorithm_on_threads(cupy: Any, right: ModuleType, nranks: int) -> None:
    """Rule: what the stand-in shows holds on a GPU: every byte, four types, eager and graph."""
    sizes = (4, 12_344, 1 << 20, 48 << 20)
    found = right.on_threads(cupy, nranks, lambda t: right.judge(t, sizes, right.KINDS))
    assert len(found) > 5 and not any(found.values()), found


def test_every_algorithm_among_processes(cupy: Any, right: ModuleType) -> None:
    """Rule: memory that another process opened by its handle is read, written and signalled to."""
    processes = importlib.import_module("gpu_processes")
    page = importlib.import_module("gpu_page").Page()
    processes.right(page, [str(REPO / "benchmarks" / "gpu_one.py"), "--process"], (2,))
    assert page.kept and not any(row["wrong"] for row in page.kept)


def _two(cupy: Any, body: Callable[[InprocWorld, IpcTransport], None], deadline: float) -> None:
    def rank(world: InprocWorld) -> None:
        transport = IpcTransport(world, GpuDevice(cupy, 0), deadline=deadline)
        body(world, transport)

    run(2, rank, deadline=60)


def _bound(right: ModuleType, transport: IpcTransport) -> Any:
    source, target = (transport.allocate(1 << 20).view(np.float32) for _ in range(2))
    return right.bound(transport, "sharded_ps", source, target).action


def test_a_launch_that_waits_in_vain_ends(cupy: Any, right: ModuleType) -> None:
    """Rule: the deadline on the GPU's own clock ends a spinning launch, and the rank is named."""

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        action = _bound(right, transport)
        if world.rank == 0:
            with pytest.raises(RankFailure, match=r"waited 0\.5 s for rank 1"):
                action()
        world.barrier()

    _two(cupy, body, 0.5)


def test_a_rank_that_has_left_is_named(cupy: Any, right: ModuleType) -> None:
    """Rule: leaving ends the wait of a launch that is already spinning, before its deadline."""

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        action = _bound(right, transport)
        if world.rank == 1:
            transport.close()
            return
        with pytest.raises(RankFailure, match="rank 1 has left"):
            action()

    _two(cupy, body, 30.0)


@pytest.mark.parametrize("loop", [False, True])
def test_times_are_a_gpus(cupy: Any, right: ModuleType, loop: bool) -> None:
    """Rule: events behind a gate time every iteration, none of them nothing."""

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        start = Start(world.barrier, loop=loop)
        seconds = _bound(right, transport).spans(300, start).seconds
        assert len(seconds) == (1 if loop else 300) and min(seconds) > 0

    _two(cupy, body, 30.0)
