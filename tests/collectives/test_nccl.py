"""Every schedule through the real nccl transport, over GPUs and an NCCL that are not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from collectives.execution.gpu.device import GpuDevice
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.nccl.transport import NcclTransport
from collectives.execution.plan import Plan
from collectives.execution.transport import LibraryCall
from collectives.schedule.catalogue import algorithms, collectives, spec
from collectives.schedule.dtypes import DTYPES, FLOAT8
from collectives.schedule.layout import Elements
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import OPS, op
from collectives.schedule.spec import Unit
from tests.collectives.cases import (
    Case,
    Judged,
    all_cases,
    allocator,
    built,
    judge,
    memory,
    placements,
)
from tests.conftest import thorough
from tests.gpu_standin import Cupy, Machine
from tests.nccl_standin import Nccl

RANKS = (1, 3, 4, *thorough(2, 5, 8))


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


def _carry_out(transport: NcclTransport, judged: Judged) -> None:
    """One rank's part of a case: run eagerly, as a graph, and timed."""
    case, rank = judged.case, transport.world.rank
    given, wanted = judged.given[rank], judged.wanted[rank]
    operation = op(case.op) if case.what.reduces else None
    source, target = memory(allocator(transport, case), case, judged.layout, rank)
    more: dict[str, Any] = {"root": case.root, "in_place": case.in_place}
    if case.schedule is None:
        buffers: Any = {Buffer.IN: source, Buffer.OUT: target}
        action: Any = transport.library(
            LibraryCall(case.what, buffers, operation, case.elements, **more)
        )
    else:
        where: Any = (source, target, operation, case.elements)
        action = Plan(case.schedule, case.what, transport, rank, *where, **more)

    def fire() -> None:
        if not case.in_place:
            target.view(np.uint8)[:] = 0xA5
        source[:] = given
        transport.world.barrier()
        action()
        if case.schedule is None and case.what.unit is Unit.NOTHING:
            return
        assert np.array_equal(target.host(), wanted), f"{case}: rank {rank} is wrong"
        if not case.in_place:
            assert np.array_equal(source.host(), given), f"{case}: the input was changed"

    fire()
    times = action.times(2, loop=False)
    assert len(times) == 2 and min(times) >= 0
    fire()
    if judged.moved is not None:
        assert [action.sent, action.received] == judged.counts(rank, 5), str(case)
    action.close()


def _all(nranks: int, cases: list[Case], **given: Any) -> Machine:
    everything = [judge(case, nranks) for case in cases]

    def body(transport: NcclTransport) -> None:
        for judged in everything:
            _carry_out(transport, judged)

    return each_rank(nranks, body, **given)


def _cases(nranks: int) -> Iterator[Case]:
    """Every algorithm, root and placement; sizes, types and operations take turns."""
    sizes, kinds, operations = cycle((1, nranks + 1, 37, 0, 2003)), cycle(DTYPES), cycle(OPS)
    for what, name, n, root in all_cases((nranks,)):
        schedule = built(what.name, name, n, root=root)
        if schedule is None:
            continue
        both = placements(what)
        # Among many ranks placements take turns.
        for in_place in both if nranks <= 5 else (both[len(name) % len(both)],):
            operation = "max" if what.idempotent else next(operations)
            elements = 1 if what.unit is Unit.NOTHING else next(sizes)
            yield Case(what, name, schedule, root, in_place, elements, next(kinds), operation)


@pytest.mark.parametrize("nranks", RANKS)
def test_every_algorithm_gives_what_numpy_gives(nranks: int) -> None:
    """Rule: any schedule runs on NCCL, eagerly and as a graph, in and out of place."""
    machine = _all(nranks, list(_cases(nranks)))
    assert "graph" in machine.launched
    assert not machine.blocks, "device memory that nobody gave back"


@pytest.mark.parametrize("nranks", [1, 2, 3, 4])
def test_every_collective_of_the_library(nranks: int) -> None:
    """Rule: the baseline exists for every collective, by NCCL's call or composed of sends."""
    cases = []
    sizes, kinds, operations = cycle((16, 5, 1003)), cycle(DTYPES), cycle(OPS)
    for name in collectives():
        what = spec(name)
        if name == "hypercube" and nranks & (nranks - 1):
            continue
        if name == "sendrecv_pairs" and nranks % 2:
            continue
        for root in sorted({0, nranks - 1}) if what.rooted else [0]:
            for in_place in placements(what):
                operation = "max" if what.idempotent else next(operations)
                elements: Elements = 1 if what.unit is Unit.NOTHING else next(sizes)
                if name == "alltoallv":
                    elements = np.arange(what.parts(nranks)) % 5
                more = (elements, next(kinds), operation)
                cases.append(Case(what, "library", None, root, in_place, *more))
    _all(nranks, cases)


@pytest.mark.parametrize("kind", (*DTYPES, *FLOAT8))
def test_every_operation_on_every_type(kind: str) -> None:
    """Rule: each type with each operation: one pass over all sources, a ring, and NCCL's own."""
    what = spec("allreduce")
    cases = []
    for name in ("one_shot", "ring", "library"):
        schedule = None if name == "library" else built("allreduce", name, 4)
        for i, operation in enumerate(OPS):
            in_place = (i + len(name)) % 2 == 0
            cases.append(Case(what, name, schedule, 0, in_place, 13, kind, operation))
    _all(4, cases)


@pytest.mark.parametrize("name", algorithms("allreduce"))
def test_without_graphs_and_turns_all_is_the_same(name: str) -> None:
    """Rule: the eager path stays: no graph is launched when none is wanted."""
    what, schedule = spec("allreduce"), built("allreduce", name, 4)
    cases = [Case(what, name, schedule, 0, place, 37, "float", "sum") for place in (False, True)]
    machine = _all(4, cases, graph=False, cold=False)
    assert "graph" not in machine.launched
