"""Every algorithm, executed among threads, gives what NumPy gives, and moves what it says."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from collectives.execution.inproc.transport import InprocTransport
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.plan import Plan
from collectives.schedule.catalogue import algorithms, build, collectives, spec
from collectives.schedule.dtypes import dtype
from collectives.schedule.ops import OPS, op
from tests.collectives.cases import RANKS, Case, Judged, all_cases, built, judge, memory, placements
from tests.conftest import thorough

DTYPES = ("int32", "float", "uint8", "bfloat16")


def _carry_out(world: InprocWorld, judged: Judged) -> None:
    """One rank's part of a case: run, again among few ranks, and compared each time."""
    case, layout, kind = judged.case, judged.layout, dtype(judged.case.dtype)
    given, wanted = judged.given[world.rank], judged.wanted[world.rank]
    operation = op(case.op) if case.what.reduces else None
    buffers = memory(lambda n: np.full(n, 99).astype(kind), case, layout, world.rank)
    source, target = buffers
    where: Any = (case.what, InprocTransport(world), world.rank, *buffers, operation, case.elements)
    with Plan(case.schedule, *where, root=case.root, in_place=case.in_place) as plan:
        times = 2 if world.size <= 9 else 1
        for _ in range(times):
            if not case.in_place:
                target[:] = 77
            source[:] = given
            world.barrier()
            plan()
            assert np.array_equal(target, wanted), f"{case}: rank {world.rank} is wrong"
            if not case.in_place:
                assert np.array_equal(source, given), f"{case}: the input was changed"
        assert [plan.sent, plan.received] == judged.counts(world.rank, times), str(case)


def _all(nranks: int, cases: list[Case]) -> None:
    everything = [judge(case, nranks) for case in cases]

    def body(world: InprocWorld) -> None:
        for judged in everything:
            _carry_out(world, judged)

    run(nranks, body, deadline=60)


def _cases(nranks: int) -> Iterator[Case]:
    """Every algorithm, root and placement; sizes, types and operations take turns."""
    # Numbers that have no common divisor, so that in turn all meet all.
    sizes = cycle((1, nranks + 1, 2 * nranks - 1, 5, 37, 0, 64))
    kinds, operations = cycle((*DTYPES, "double", "int64")), cycle(OPS)
    few = nranks <= 9
    for what, name, n, root in all_cases((nranks,)):
        # Among many ranks, roots and placements take turns from one rank count to the next.
        turn = len(name) + nranks
        if not few and what.rooted and (root == 0) != (turn % 2 == 0):
            continue
        schedule = built(what.name, name, n, root=root)
        if schedule is None:
            continue
        both = placements(what)
        for in_place in both if few else (both[turn // 2 % len(both)],):
            operation = "max" if what.idempotent else next(operations)
            yield Case(what, name, schedule, root, in_place, next(sizes), next(kinds), operation)


@pytest.mark.parametrize("nranks", [*RANKS[:9], 13, 16, *thorough(10, 11, 12, 14, 15, 17, 32)])
def test_every_algorithm_gives_what_numpy_gives(nranks: int) -> None:
    """All algorithms, roots and placements, with sizes that do not divide."""
    _all(nranks, list(_cases(nranks)))


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("operation", OPS)
def test_every_operation_on_every_type(kind: str, operation: str) -> None:
    """Each type with each operation, through every algorithm that reduces."""
    cases = []
    for collective in collectives():
        what = spec(collective)
        if not what.reduces or (what.idempotent and operation not in ("min", "max")):
            continue
        for name in algorithms(collective):
            schedule = built(collective, name, 4, root=3 if what.rooted else 0)
            assert schedule is not None
            root = 3 if what.rooted else 0
            cases.append(Case(what, name, schedule, root, False, 13, kind, operation))
    _all(4, cases)


UNEVEN = {
    "none": np.zeros((6, 6), np.int64),
    "one": np.eye(6, k=2, dtype=np.int64) * 1000,
    "wild": np.array(
        [
            [0, 1, 7000, 0, 3, 0],
            [5, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 0, 0],
            [1, 2, 3, 4, 5, 6],
            [9999, 0, 1, 0, 64, 2],
            [0, 0, 0, 0, 0, 1],
        ]
    ),
}


@pytest.mark.parametrize("counts", UNEVEN.values(), ids=UNEVEN)
@pytest.mark.parametrize("name", algorithms("alltoall"))
def test_all_to_all_with_uneven_counts(name: str, counts: NDArray[np.int64]) -> None:
    """Zero counts and wildly uneven ones; every all-to-all can do them, packed or not."""
    what = spec("alltoallv")
    for packed in (0, 1):
        schedule = build("alltoall", name, 6, pack=packed)
        _all(6, [Case(what, name, schedule, 0, False, counts.ravel(), "int32", "sum")])
