"""Our plans over MPI against MPI_Allreduce of the same library, interleaved in one run.

    mpirun -n 2 python benchmarks/plans_vs_library.py

Prints, per size, the median time of MPI_Allreduce called from Python and of each algorithm's
plan, their ratio (plan / library, below 1 is faster) and the middle half of the pairwise ratios.
Every round times each of them once, so that drift of the machine meets all alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.mpi.transport import MpiTransport
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.plan import Plan
from collectives.execution.transport import LibraryCall
from collectives.schedule.catalogue import build, spec
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op

Contender = Callable[[], None]
SPEC, SUM = spec("allreduce"), op("sum")


def contenders(
    world: MpiWorld, names: list[str], source: np.ndarray, target: np.ndarray
) -> dict[str, Contender]:
    """The library's call and each algorithm's plan, on the same buffers."""
    transport, n = MpiTransport(world), len(source)
    buffers = {Buffer.IN: source, Buffer.OUT: target}
    found: dict[str, Contender] = {
        "MPI_Allreduce": transport.library(LibraryCall(SPEC, buffers, SUM, n))
    }
    for name in names:
        try:
            schedule = build("allreduce", name, world.size)
        except Unsupported:
            continue
        found[name] = Plan(schedule, SPEC, transport, world.rank, source, target, SUM, n)
    return found


def rounds(
    world: MpiWorld, plans: dict[str, Contender], count: int, inner: int
) -> dict[str, np.ndarray]:
    """Seconds per iteration, maximum over ranks, ``count`` rounds of each in turn."""
    times = {name: np.empty(count) for name in plans}
    for i in range(count):
        for name, plan in plans.items():
            world.barrier()
            start = time.perf_counter()
            for _ in range(inner):
                plan()
            times[name][i] = (time.perf_counter() - start) / inner
    return {name: world.combine(values, "max") for name, values in times.items()}


def main() -> None:
    """Parse, measure, print on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="8,16777216,268435456", help="bytes, joined by commas")
    parser.add_argument("--algorithms", default="recursive_doubling,ring,sharded_ps")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    world = MpiWorld()
    if world.rank == 0:
        print(f"# {world.library()}, {world.size} ranks, float sum, out-of-place")
        print(f"# {'bytes':>10} {'algorithm':>20} {'median us':>12} {'ratio':>7}  middle half")
    for size in map(int, given.sizes.split(",")):
        source, target = np.ones(size // 4, np.float32), np.zeros(size // 4, np.float32)
        plans = contenders(world, given.algorithms.split(","), source, target)
        for plan in plans.values():
            plan()
            assert (target == world.size).all()
            target[:] = 0
        inner = 1000 if size < 2**16 else 1
        times = rounds(world, plans, given.rounds, inner)
        base = times["MPI_Allreduce"]
        for name, values in times.items():
            low, middle, high = np.quantile(values / base, [0.25, 0.5, 0.75])
            if world.rank == 0:
                print(
                    f"  {size:>10} {name:>20} {np.median(values) * 1e6:>12.2f} {middle:>7.2f}"
                    f"  {low:.2f} to {high:.2f}",
                    flush=True,
                )
        for plan in plans.values():
            plan.close()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
