"""Latency of Busbar's and MPI's all-reduce on 2 ranks, while other processes use the cores.

    mpirun -n 2 python benchmarks/busy_neighbours.py --busy 2

Times are in microseconds: medians of five turns of a quarter of a second each. ``--pin own`` gives
each rank its own core, ``same`` puts both on the first core, and so the other processes too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from collectives.execution.mpi.world import MpiWorld
from collectives.execution.plan import Plan
from collectives.execution.shm.transport import ShmTransport
from collectives.execution.transport import Start
from collectives.schedule.catalogue import build, spec
from collectives.schedule.ops import op

TURNS, SECONDS = 5, 0.25


def main() -> None:
    """Measure 8 bytes and 64 KiB and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, default=0, help="processes that never wait")
    parser.add_argument("--pin", choices=("none", "own", "same"), default="none")
    given = parser.parse_args()
    world = MpiWorld()
    transport = ShmTransport(world)  # which sees a core for each rank, wherever they are put then
    if given.pin != "none":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[world.rank if given.pin == "own" else 0]})
    mine = given.busy if world.rank == 0 else 0
    loop = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(loop) for _ in range(mine)]
    try:
        for name, nbytes in (("recursive_doubling", 8), ("ring", 1 << 16)):
            said = case(world, transport, name, nbytes)
            if world.rank == 0:
                print(f"{given.busy} busy, {given.pin}, {nbytes} B: {said}", flush=True)
    finally:
        for one in busy:
            one.kill()
    transport.close()


def case(world: MpiWorld, transport: ShmTransport, name: str, nbytes: int) -> str:
    """The medians of all turns as text, for a plan and for MPI_Allreduce."""
    source, target = (transport.allocate(nbytes).view(np.float32) for _ in range(2))
    source[:] = 0
    where = (build("allreduce", name, world.size), spec("allreduce"), transport, world.rank)

    def theirs(n: int) -> list[float]:
        times = []
        for _ in range(n):
            world.barrier()
            start = time.perf_counter()
            world.comm.Allreduce(source, target)
            times.append(time.perf_counter() - start)
        return times

    with Plan(*where, source, target, op("sum"), len(source)) as plan:

        def ours(n: int) -> list[float]:
            return plan.spans(n, Start(world.barrier)).seconds.tolist()

        return f"{name} {turns(world, ours)}, MPI_Allreduce {turns(world, theirs)}"


def turns(world: MpiWorld, timed: Callable[[int], list[float]]) -> list[float]:
    """The median of each turn in microseconds; an operation's time is the slower rank's."""
    found = []
    for _ in range(TURNS):
        times: list[float] = []
        start = time.monotonic()
        while world.broadcast(time.monotonic() - start < SECONDS):
            times += timed(100)
        found.append(round(float(np.median(world.combine(np.array(times), "max"))) * 1e6, 2))
    return found


if __name__ == "__main__":
    main()
