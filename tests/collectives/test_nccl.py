"""Every schedule through the real nccl transport, over GPUs and an NCCL that are not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collectives.execution.gpu.action import QUEUE, StreamAction
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.gpu.lane import queue_entries
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.nccl.transport import NcclTransport
from collectives.execution.transport import LibraryCall, Start
from collectives.schedule.catalogue import algorithms, spec
from collectives.schedule.dtypes import DTYPES, FLOAT8
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op
from tests.collectives.cases import Case
from tests.collectives.executing import carry_out, every_operation, in_turn, judged_cases
from tests.conftest import thorough
from tests.gpu_standin import Cupy, Machine
from tests.nccl_standin import Nccl


def each_rank(
    nranks: int, body: Callable[[NcclTransport], Any], machine: Machine | None = None, **given: Any
) -> Machine:
    """Run a body on every rank's transport, each rank on a GPU of its own."""
    machine = machine or Machine(max(1, nranks))
    cupy, nccl = Cupy(machine), Nccl(machine)

    def rank(world: InprocWorld) -> None:
        gpu = GpuDevice(cupy, world.rank % machine.gpus)
        transport = NcclTransport(world, gpu, nccl, **{"deadline": 60.0, **given})
        body(transport)
        transport.close()

    run(nranks, rank, deadline=120)
    return machine


def _all(nranks: int, cases: list[Case], **given: Any) -> Machine:
    """Every case: launched, captured as a graph, timed, and replayed."""
    everything = judged_cases(cases, nranks)

    def body(transport: NcclTransport) -> None:
        for judged in everything:
            carry_out(transport.world, transport, judged, timed=2)

    return each_rank(nranks, body, **given)


@pytest.mark.parametrize("nranks", [1, 3, *thorough(2, 4, 5, 8)])
def test_every_algorithm_gives_what_numpy_gives(nranks: int) -> None:
    """Rule: any schedule runs on NCCL, eagerly and as a graph, in and out of place."""
    machine = _all(nranks, list(in_turn(nranks, (1, 37, 0, 2003), few=5)))
    assert "graph" in machine.launched
    assert not machine.blocks, "device memory that nobody gave back"


@pytest.mark.parametrize("nranks", [1, 2, 3, 4])
def test_every_collective_of_the_library(nranks: int) -> None:
    """Rule: the baseline exists for every collective, by NCCL's call or composed of sends."""
    cases = []
    for case in in_turn(nranks, (16, 5, 1003), first=True):
        elements = case.elements
        if case.what.name == "alltoallv":
            elements = np.arange(case.what.parts(nranks)) % 5
        cases.append(case._replace(name="library", schedule=None, elements=elements))
    _all(nranks, cases)


@pytest.mark.parametrize("kind", (*DTYPES, *FLOAT8))
def test_every_operation_on_every_type(kind: str) -> None:
    """Rule: each type with each operation: one pass over all sources, a ring, and NCCL's own."""
    _all(3, list(every_operation(3, kind, ("one_shot", "ring", "library"), (13,))))


@pytest.mark.parametrize("name", algorithms("allreduce"))
def test_without_graphs_and_turns_all_is_the_same(name: str) -> None:
    """Rule: the eager path stays: no graph is launched when none is wanted."""
    cases = [case for case in in_turn(4) if (case.what.name, case.name) == ("allreduce", name)]
    machine = _all(4, cases, graph=False, cold=False)
    assert "graph" not in machine.launched


def _library(transport: NcclTransport) -> StreamAction:
    """NCCL's all-reduce of 16 floats."""
    source, target = (transport.allocate(64).view(np.float32) for _ in range(2))
    buffers = {Buffer.IN: source, Buffer.OUT: target}
    return transport.library(LibraryCall(spec("allreduce"), buffers, op("sum"), 16))


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("loop", [False, True])
def test_a_full_batch_of_nccl_calls_fits_the_queue(loop: bool, graph: bool) -> None:
    """Rule: an NCCL call counts as the four entries of a stream's queue that it takes.

    Beyond about a thousand, enqueueing blocks, and behind a closed gate it would for ever.
    """

    def body(transport: NcclTransport) -> None:
        action = _library(transport)
        action.spans(1000, Start(transport.world.barrier, loop=loop))
        action.close()

    machine = each_rank(2, body, graph=graph)
    assert QUEUE / 2 < machine.deepest <= QUEUE and not machine.stuck


def test_between_nodes_a_batch_leaves_room_in_nccls_pool() -> None:
    """Rule: between nodes at most 16 NCCL calls stand behind a gate: each takes proxy operations.

    NCCL waits for a free one, and none becomes free before the gate is open.
    """

    def body(transport: NcclTransport) -> None:
        transport.world.nodes = (0, 1)
        assert queue_entries(transport.meet * 17) > QUEUE >= queue_entries(transport.meet * 16)
        # A graph hands its operations over when the stream comes to them.
        assert queue_entries(transport.meet * 16, graph=True) == 20

    each_rank(2, body)


def test_a_failure_while_overhead_is_measured_leaves_no_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule: a failure in `overhead` keeps no graph alive: aborting would wait for it for ever."""
    machine = Machine(1)

    def fails(self: StreamAction, n: int) -> float:
        raise ValueError("in the middle")

    def body(transport: NcclTransport) -> None:
        action = _library(transport)
        action.spans(2, Start(transport.world.barrier))
        monkeypatch.setattr(StreamAction, "_unheld", fails)
        with pytest.raises(ValueError, match="in the middle") as failure:
            action.overhead()
        transport.give_up()
        assert failure.value.__traceback__ is not None  # the frame is still there

    each_rank(1, body, machine)
    assert not machine.stuck
