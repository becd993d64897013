"""One rank under mpirun: groups of ranks, and alarms that nobody waits for."""

from __future__ import annotations

import sys
import time

from collectives.execution.mpi.world import MpiWorld
from collectives.execution.world import World


def check(world: World) -> None:
    """What holds in every world of four ranks."""
    rank = world.rank
    group = world.split(rank % 2, -rank)  # by descending rank
    assert group.size == 2 and group.gather(rank) == [rank % 2 + 2, rank % 2]
    assert group.broadcast(rank) == rank % 2 + 2
    group.barrier()
    assert world.alarms() == []
    world.barrier()
    if rank == 3:
        world.alarm({"failed": "on purpose"})
        # In a group alarms stay in the group, whose first rank this is.
        group.alarm("for one")
    found: list[object] = []
    stop = time.monotonic() + 60
    while rank != 3 and not found and time.monotonic() < stop:
        found += world.alarms()
    assert found == ([] if rank == 3 else [(3, {"failed": "on purpose"})])
    inner: list[object] = []
    while rank == 1 and not inner and time.monotonic() < stop:
        inner += group.alarms()
    assert inner == ([(0, "for one")] if rank == 1 else [])
    world.barrier()
    assert group.alarms() == [] and world.alarms() == []


if __name__ == "__main__":
    mpi = MpiWorld()
    check(mpi)
    if mpi.rank == 0:
        sys.stdout.write("all right\n")
