"""Every algorithm, executed among threads, gives what NumPy gives, and moves what it says."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from collectives.execution.inproc.transport import InprocTransport
from collectives.execution.inproc.world import InprocWorld, run
from collectives.schedule.catalogue import algorithms, build, collectives, spec
from collectives.schedule.ops import OPS
from tests.collectives.cases import Case, built
from tests.collectives.executing import carry_out, in_turn, judged_cases
from tests.conftest import thorough

DTYPES = ("int32", "float", "uint8", "bfloat16")


def _all(nranks: int, cases: list[Case]) -> None:
    """Every case, again among few ranks."""
    everything = judged_cases(cases, nranks)

    def body(world: InprocWorld) -> None:
        transport = InprocTransport(world)
        for judged in everything:
            carry_out(world, transport, judged, iterations=2 if nranks <= 9 else 1)

    run(nranks, body, deadline=60)


@pytest.mark.parametrize(
    "nranks", [1, 2, 3, 4, 5, 8, 13, *thorough(6, 7, 9, 10, 11, 12, 14, 15, 16, 17, 32)]
)
def test_every_algorithm_gives_what_numpy_gives(nranks: int) -> None:
    """All algorithms, roots and placements, with sizes that do not divide."""
    sizes = (1, 2 * nranks - 1, 5, 37, 0, 64)
    _all(nranks, list(in_turn(nranks, sizes, kinds=(*DTYPES, "double", "int64"))))


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
