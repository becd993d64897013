r"""Busbar's plans over MPI against MPI_Allreduce of the same library, interleaved in one run.

    mpirun -n 2 python benchmarks/plans_vs_library.py
    python -m bench.cluster --hosts 4 --ranks-per-host 4 --rate 100Gbit -- \
        python benchmarks/plans_vs_library.py --transports mpi,shm+mpi
    mpirun -n 2 python benchmarks/plans_vs_library.py --transports mpi,mpi:segment=64K:in_flight=4

Prints, for each size, the median time of MPI_Allreduce called from Python and of each algorithm's
plan, their ratio (plan / library; below 1 the plan is faster) and the middle half of the ratios of
rounds. Every round times each of them once, so that drift of the machine affects all equally.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.plan import Plan
from collectives.execution.registry import TransportRequest, open_transports
from collectives.execution.transport import LibraryCall, Transport
from collectives.schedule.catalogue import build, spec
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op

Contender = Callable[[], None]
SPEC, SUM = spec("allreduce"), op("sum")


def contenders(
    world: MpiWorld, transports: Mapping[str, Transport], names: list[str], n: int
) -> dict[str, tuple[Contender, np.ndarray]]:
    """The library's call and each algorithm's plan over each transport, with result arrays."""
    found: dict[str, tuple[Contender, np.ndarray]] = {}
    for over, transport in transports.items():
        source, target = (transport.allocate(4 * n).view(np.float32) for _ in range(2))
        source[:], target[:] = 1, 0
        if transport.has_library and "MPI_Allreduce" not in found:
            buffers = {Buffer.IN: source, Buffer.OUT: target}
            call = LibraryCall(SPEC, buffers, SUM, n)
            found["MPI_Allreduce"] = transport.library(call), target
        for name in names:
            try:
                schedule = build("allreduce", name, world.size)
            except Unsupported:
                continue
            plan = Plan(schedule, SPEC, transport, world.rank, source, target, SUM, n)
            found[f"{name} {over}"] = plan, target
    return found


def rounds(
    world: MpiWorld, plans: dict[str, Contender], count: int, inner: int
) -> dict[str, np.ndarray]:
    """Seconds per iteration on the slowest rank, in ``count`` rounds with a turn for each plan."""
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
    """Measure what the command line asks for, and print it on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="8,16777216,268435456", help="bytes, joined by commas")
    parser.add_argument("--algorithms", default="recursive_doubling,ring,sharded_ps")
    parser.add_argument(
        "--transports",
        default="mpi",
        help="joined by commas, mpi first, each with :option=value of its own",
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--inner", type=int, help="iterations in a row (default 1000 below 64 KiB)")
    given = parser.parse_args()
    world = MpiWorld()
    if world.rank == 0:
        print(f"# {world.library()}, {world.size} ranks, float sum, out-of-place")
        print(f"# {'bytes':>10} {'algorithm':>36} {'median us':>12} {'ratio':>7}  middle half")
    names, over = given.algorithms.split(","), given.transports.split(",")
    transports = {
        text: open_transports(
            world, TransportRequest(name, 60.0, dict(pairs), lambda _: [])
        ).transport
        for text in over
        for name, *own in [text.split(":")]
        for pairs in [[one.partition("=")[::2] for one in own]]
    }
    for size in map(int, given.sizes.split(",")):
        plans = contenders(world, transports, names, size // 4)
        for plan, target in plans.values():
            plan()
            assert (target == world.size).all()
            target[:] = 0
        inner = given.inner or (1000 if size < 2**16 else 1)
        times = rounds(
            world, {name: plan for name, (plan, _) in plans.items()}, given.rounds, inner
        )
        base = times["MPI_Allreduce"]
        for name, values in times.items():
            low, middle, high = np.quantile(values / base, [0.25, 0.5, 0.75])
            if world.rank == 0:
                print(
                    f"  {size:>10} {name:>36} {np.median(values) * 1e6:>12.2f} {middle:>7.2f}"
                    f"  {low:.2f} to {high:.2f}",
                    flush=True,
                )
        for plan, _ in plans.values():
            plan.close()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
