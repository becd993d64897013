"""Run under mpirun by test_shm_mpi.py: ``right`` compares results; ``die`` kills a rank inside."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from collectives.catalogue import algorithms, build, spec
from collectives.errors import RankFailure, Unsupported
from collectives.ops import op
from collectives.plan import Plan
from collectives.transports.shm import ShmTransport
from collectives.worlds.mpi import MpiWorld


def right(world: MpiWorld, transport: ShmTransport) -> None:
    """Every all-reduce, small and large, both placements, three firings each."""
    checked = 0
    for name in algorithms("allreduce"):
        try:
            schedule = build("allreduce", name, world.size)
        except Unsupported:
            continue
        for elements in (3, 70_001):
            for in_place in (False, True):
                source = transport.allocate(elements * 8).view(np.int64)
                target = source if in_place else transport.allocate(elements * 8).view(np.int64)
                where = (schedule, spec("allreduce"), transport, world.rank, source, target)
                with Plan(*where, op("sum"), elements, in_place=in_place) as plan:
                    for turn in range(3):
                        source[:] = np.arange(elements) * (world.rank + 1) + turn
                        plan()
                        ranks = world.size * (world.size + 1) // 2
                        wanted = np.arange(elements) * ranks + turn * world.size
                        assert np.array_equal(target, wanted), f"{name} {elements} {in_place}"
                        checked += 1
    if world.rank == 0:
        print(f"right {checked}", flush=True)


def die(world: MpiWorld, transport: ShmTransport) -> None:
    """The last rank is killed inside the loop; the others write down who was lost, and when.

    In files: what is printed while a launcher takes a run down may be lost.
    """
    # MPICH's launcher tells the others of a death in this way.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    elements = 1 << 20
    source, target = (transport.allocate(elements * 4).view(np.float32) for _ in range(2))
    schedule = build("allreduce", "ring", world.size)
    where = (schedule, spec("allreduce"), transport, world.rank, source, target)
    plan = Plan(*where, op("sum"), elements)
    plan()
    world.barrier()
    if world.rank == world.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        while True:
            plan()
    except RankFailure as error:
        spent = time.monotonic() - start
        Path(sys.argv[3], str(world.rank)).write_text(f"{spent:.1f} {error}")
        os._exit(4)


if __name__ == "__main__":
    the_world = MpiWorld()
    the_transport = ShmTransport(the_world, executor=sys.argv[2], deadline=60)
    {"right": right, "die": die}[sys.argv[1]](the_world, the_transport)
