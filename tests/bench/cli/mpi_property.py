"""Run under mpirun by test_mpi: random cases on real MPI against NumPy; every rank checks itself.

Prints ``checked N`` on rank 0. Any wrong element raises, which must end all ranks.
"""

from __future__ import annotations

import sys

import numpy as np

from bench.run.data import Inputs
from busbar.errors import Unsupported
from collectives.execution.mpi import calls
from collectives.execution.mpi.transport import MpiTransport, Segments
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.plan import Plan
from collectives.schedule.catalogue import algorithms, build, spec
from collectives.schedule.dtypes import DTYPES, dtype
from collectives.schedule.layout import Layout
from collectives.schedule.ops import OPS, op
from native import load


def one(world: MpiWorld, random: np.random.Generator) -> bool:
    """One random case, the same on all ranks; False where the algorithm cannot serve them."""
    name = str(random.choice(algorithms("allreduce")))
    kind, operation = str(random.choice(DTYPES)), str(random.choice(OPS))
    elements = int(random.choice([1, 2, 7, 64, 1000, 65_537]))
    in_place = bool(random.integers(2))
    # Segments far below their usual size, so that streams of many segments are met.
    # The extension's calls, or those of a Python without it.
    calls.load = (lambda: None) if random.integers(3) == 0 else load
    segments = Segments(int(random.choice([0, 64, 4096, 2**19])), int(random.choice([1, 2, 5])))
    transport = MpiTransport(world, segments)
    collective = spec("allreduce")
    try:
        schedule = build("allreduce", name, world.size)
    except Unsupported:
        return False
    layout = Layout.of(schedule, collective)
    inputs = Inputs(layout, dtype(kind), op(operation), elements)
    target = np.empty(elements, dtype(kind))
    source = target if in_place else np.empty_like(target)
    with Plan(
        schedule, collective, transport, world.rank, source, target, op(operation), elements,
        in_place=in_place,
    ) as plan, np.errstate(all="ignore"):  # fmt: skip
        for _ in range(2):  # a plan runs again and again
            target.view(np.uint8)[:] = 0xA5
            inputs.fill(world.rank, source)
            plan()
            wrong = inputs.check(world.rank, target)
            if wrong.count:
                raise AssertionError(f"{name} {kind} {operation} {elements} {in_place}: {wrong}")
    return True


def main() -> None:
    """As many cases as the first argument says."""
    world = MpiWorld()
    random = np.random.default_rng(12345 + world.size)
    try:
        checked = sum(one(world, random) for _ in range(int(sys.argv[1])))
    except Exception as error:  # noqa: BLE001  (any failure must end every rank)
        print(f"rank {world.rank}: {error}", file=sys.stderr, flush=True)
        world.abort(1)
    if world.rank == 0:
        print(f"checked {checked}")


if __name__ == "__main__":
    main()
