"""The ipc transport on stand-in GPUs: every schedule, through the CUDA executor's own source."""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from busbar.errors import RankFailure, Unavailable, Unsupported
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.ipc.transport import IpcTransport
from collectives.execution.plan import Plan
from collectives.schedule.catalogue import build, spec
from collectives.schedule.dtypes import DTYPES, dtype
from collectives.schedule.ops import op
from tests.collectives.cases import Case, Judged, allocator, every_collective, judge, memory
from tests.collectives.ipc_stand_in import IpcCupy, IpcMachine
from tests.collectives.test_shm import every_operation, small_and_large
from tests.conftest import thorough

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="no g++ to build the executor for the host with"
)


def _filled(size: int, kind: np.dtype[Any], value: int) -> NDArray[Any]:
    return np.full(size, value).astype(kind)


def play(world: InprocWorld, transport: IpcTransport, judged: list[Judged]) -> None:
    """One rank's part of each case, launched three times (also as a graph) and compared."""
    rank = world.rank
    for one in judged:
        case, kind = one.case, dtype(one.case.dtype)
        source, target = memory(allocator(transport, case), case, one.layout, rank)
        where = (case.schedule, case.what, transport, rank, source, target)
        used = op(case.op) if case.what.reduces else None
        with Plan(*where, used, case.elements, root=case.root, in_place=case.in_place) as plan:
            for _ in range(3):
                target[:] = _filled(len(target), kind, 77)
                source[:] = one.given[rank]
                world.barrier()
                plan()
                assert np.array_equal(target.host(), one.wanted[rank]), f"{case}: {rank} is wrong"
                # Nobody reads or writes this rank's buffers any more: they may change at once.
                target[:] = _filled(len(target), kind, 78)
            assert [plan.sent, plan.received] == one.counts(rank, 3), str(case)
            world.barrier()
    transport.close()


def share(world: InprocWorld, transport: IpcTransport, judged: list[Judged]) -> None:
    """One rank's part of every case by work sharing, run twice and compared each time."""
    rank = world.rank
    for one in judged:
        case, kind = one.case, dtype(one.case.dtype)
        source, target = memory(allocator(transport, case), case, one.layout, rank)
        action = transport.worksharing(case.call(source, target))
        for _ in range(2):
            target[:] = _filled(len(target), kind, 77)
            source[:] = one.given[rank]
            world.barrier()
            action()
            assert np.array_equal(target.host(), one.wanted[rank]), f"{case}: {rank} is wrong"
        both = world.gather([action.sent, action.received])
        assert sum(sent for sent, _ in both) == sum(received for _, received in both), str(case)
        action.close()
    transport.close()


def _run(
    nranks: int,
    cases: list[Case],
    gpus: int = 1,
    part: Callable[[InprocWorld, IpcTransport, list[Judged]], None] = play,
    **options: object,
) -> IpcMachine:
    machine = IpcMachine(gpus)
    cupy, judged = IpcCupy(machine), [judge(case, nranks) for case in cases]

    def body(world: InprocWorld) -> None:
        device = GpuDevice(cupy, world.rank % gpus)
        part(world, IpcTransport(world, device, deadline=120, **options), judged)

    run(nranks, body, deadline=200)
    assert not machine.stuck
    return machine


@pytest.mark.parametrize("nranks", [1, 3, 4, *thorough(2, 5, 8)])
def test_every_algorithm_gives_what_numpy_gives(nranks: int) -> None:
    """Rule: any schedule runs as one launch a rank, several blocks each, replayed from a graph."""
    cases = list(small_and_large(nranks))
    _run(nranks, cases if nranks < 8 else cases[::2])


@pytest.mark.parametrize("nranks", [2, 5])
def test_work_sharing_gives_what_numpy_gives(nranks: int) -> None:
    """Rule: any collective's work may be shared among GPUs, in both placements."""
    _run(nranks, list(every_collective(nranks)), part=share)


@pytest.mark.parametrize("kind", DTYPES)
def test_every_operation_on_every_type(kind: str) -> None:
    """Rule: each type with each operation, through one pass over all sources and through a ring."""
    _run(3, list(every_operation(3, kind)))


def _ranks(body, nranks: int = 2, gpus: int = 1, **options: object) -> IpcMachine:
    machine = IpcMachine(gpus)
    cupy = IpcCupy(machine)

    def rank(world: InprocWorld) -> None:
        options_ = {"deadline": 60.0, **options}
        body(world, IpcTransport(world, GpuDevice(cupy, world.rank % gpus), **options_))

    run(nranks, rank, deadline=120)
    gc.collect()
    GpuDevice(cupy, 0).sweep()
    assert not machine.stuck
    return machine


def _plan(world: InprocWorld, transport: IpcTransport, elements: int) -> Plan:
    source, target = (transport.allocate(4 * elements).view(np.float32) for _ in range(2))
    source[:] = np.ones(elements, np.float32)
    schedule = build("allreduce", "sharded_ps", world.size)
    where = (schedule, spec("allreduce"), transport, world.rank, source, target)
    return Plan(*where, op("sum"), elements)


def test_a_rank_that_has_left_ends_the_wait_of_the_others() -> None:
    """Rule: a rank that leaves is named by the executor of those who wait, before any deadline."""

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        plan = _plan(world, transport, 50_000)
        if world.rank == 1:
            transport.close()
            return
        with pytest.raises(RankFailure, match="rank 1 has left"):
            plan()

    _ranks(body, deadline=60)


def test_a_rank_that_does_not_come_is_named_after_the_deadline() -> None:
    """Rule: a spinning launch ends by itself, says for whom it waited, and runs no more."""
    over = threading.Barrier(3)

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        plan = _plan(world, transport, 50_000)
        if world.rank != 1:
            with pytest.raises(RankFailure, match=r"rank 1|rank [02] failed"):
                plan()
            with pytest.raises(RankFailure, match=r"rank 1|rank [02] failed"):
                plan()
        over.wait(120)

    _ranks(body, 3, deadline=0.2)


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_timing_fires_and_counts(loop: bool, graph: bool) -> None:
    """Rule: times() launches n times behind a gate, a time each (or one), and counts bytes."""

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        plan = _plan(world, transport, 5000)
        found = plan.times(70, loop)
        assert len(found) == (1 if loop else 70) and min(found) > 0
        assert plan.sent == 4 * 5000 * (70 + 2)  # two before the clock: one connects
        world.barrier()

    _ranks(body, graph=graph)


def test_memory_from_elsewhere_is_refused() -> None:
    """Rule: a buffer that other ranks cannot map is an error that says where to get one."""

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        schedule = build("allreduce", "ring", 1)
        array = transport.device.allocate(16).view(np.float32)
        where = (schedule, spec("allreduce"), transport, 0, array, array)
        with pytest.raises(Unavailable, match="allocate"):
            Plan(*where, op("sum"), 4, in_place=True)

    _ranks(body, 1)


def test_nothing_is_left_behind() -> None:
    """Rule: when plans, buffers and transports are gone, so is the GPU memory that they took."""

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        with _plan(world, transport, 50_000) as plan:
            plan()
            world.barrier()
        transport.close()

    machine = _ranks(body, 3)
    assert not machine.blocks


def test_ranks_on_gpus_without_a_path_are_refused() -> None:
    """Rule: no peer access is an error with the GPUs and the remedy, before any plan is built."""
    cupy = IpcCupy(IpcMachine(2))
    cupy.runtime.deviceCanAccessPeer = lambda index, other: False  # type: ignore[method-assign]

    def body(world: InprocWorld) -> None:
        with pytest.raises(Unavailable, match=r"no peer access to GPU .*--transport nccl"):
            IpcTransport(world, GpuDevice(cupy, world.rank))

    run(2, body, deadline=20)


def test_two_nodes_are_refused() -> None:
    """Rule: peer memory ends at the host, and the message names what does not."""

    def body(world: InprocWorld) -> None:
        world.nodes = (0, 1)
        with pytest.raises(Unsupported, match="--transport nccl"):
            IpcTransport(world, GpuDevice(IpcCupy(IpcMachine()), 0))

    run(2, body, deadline=20)
