"""The ipc transport on stand-in GPUs: every schedule, through the CUDA executor's own source."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from busbar.errors import RankFailure, Unavailable, Unsupported
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.ipc.transport import IpcTransport
from collectives.execution.plan import Plan
from collectives.execution.transport import Start
from collectives.schedule.catalogue import build, spec
from collectives.schedule.dtypes import DTYPES, FLOAT8
from collectives.schedule.ops import op
from tests.collectives.cases import Case
from tests.collectives.executing import allreduce, carry_out, every_operation, in_turn, judged_cases
from tests.collectives.ipc_stand_in import IpcCupy, IpcMachine, ranks
from tests.conftest import thorough


def _all(nranks: int, cases: list[Case], *, iterations: int = 3, sharing: bool = False) -> None:
    """Every case: launched, captured as a graph, replayed."""
    everything = judged_cases(cases, nranks)

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        for judged in everything:
            carry_out(world, transport, judged, iterations=iterations, sharing=sharing)
        transport.close()

    ranks(body, nranks, deadline=120)


@pytest.mark.parametrize("nranks", [1, 4, *thorough(2, 3, 5, 8)])
def test_every_algorithm_gives_what_numpy_gives(nranks: int) -> None:
    """Rule: any schedule runs as one launch a rank, several blocks each, replayed from a graph."""
    cases = list(in_turn(nranks))
    _all(nranks, cases if nranks < 8 else cases[::2])


@pytest.mark.parametrize("nranks", [2, 5])
def test_work_sharing_gives_what_numpy_gives(nranks: int) -> None:
    """Rule: any collective's work may be shared among GPUs, in both placements."""
    _all(nranks, list(in_turn(nranks, first=True)), iterations=2, sharing=True)


@pytest.mark.parametrize("kind", (*DTYPES, *FLOAT8))
def test_every_operation_on_every_type(kind: str) -> None:
    """Rule: each type with each operation, through one pass over all sources and through a ring."""
    _all(3, list(every_operation(3, kind)))


def test_a_rank_that_has_left_ends_the_wait_of_the_others() -> None:
    """Rule: a rank that leaves is named by the executor of those who wait, before any deadline."""

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        plan, *_ = allreduce(transport, world, "sharded_ps", 50_000)
        if world.rank == 1:
            transport.close()
            return
        with pytest.raises(RankFailure, match="rank 1 has left"):
            plan()

    ranks(body)


def test_a_rank_that_does_not_come_is_named_after_the_deadline() -> None:
    """Rule: a spinning launch ends by itself, says for whom it waited, and runs no more."""
    begun, over = threading.Barrier(2), threading.Barrier(3)

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        plan, *_ = allreduce(transport, world, "sharded_ps", 50_000)
        if world.rank != 1:
            begun.wait(120)
            with pytest.raises(RankFailure, match=r"rank 1|rank [02] failed"):
                plan()
            with pytest.raises(RankFailure, match=r"rank 1|rank [02] failed"):
                plan()
        over.wait(120)

    ranks(body, 3, deadline=1)


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_timing_fires_and_counts(loop: bool, graph: bool) -> None:
    """Rule: spans() launches n times behind a gate, a time each (or one), and counts bytes."""

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        plan, *_ = allreduce(transport, world, "sharded_ps", 5000)
        seconds = plan.spans(70, Start(world.barrier, loop=loop)).seconds
        assert len(seconds) == (1 if loop else 70) and min(seconds) > 0
        assert plan.sent == 4 * 5000 * (70 + 2)  # two before the clock: one connects
        world.barrier()

    ranks(body, graph=graph)


def test_memory_from_elsewhere_is_refused() -> None:
    """Rule: a buffer that other ranks cannot map is an error that says where to get one."""

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        schedule = build("allreduce", "ring", 1)
        array = transport.device.allocate(16).view(np.float32)
        where = (schedule, spec("allreduce"), transport, 0, array, array)
        with pytest.raises(Unavailable, match="allocate"):
            Plan(*where, op("sum"), 4, in_place=True)

    ranks(body, 1)


def test_nothing_is_left_behind() -> None:
    """Rule: when plans, buffers and transports are gone, so is the GPU memory that they took."""

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        with allreduce(transport, world, "sharded_ps", 50_000)[0] as plan:
            plan()
            world.barrier()
        transport.close()

    machine = ranks(body, 3)
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
