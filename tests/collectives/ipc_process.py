"""A process of test_ipc_processes.py: ``right|die FOLDER RANK SIZE``, on stand-ins."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

from busbar.errors import RankFailure
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.ipc.transport import IpcTransport
from collectives.execution.world import Json
from collectives.schedule.catalogue import algorithms
from tests.collectives.cases import built
from tests.collectives.executing import allreduce
from tests.collectives.ipc_stand_in import IpcCupy, IpcMachine
from tests.collectives.shm_process import FileWorld

ELEMENTS = 9001


class Files(FileWorld):
    """A control plane on which nobody raises an alarm: what is noticed is noticed otherwise."""

    def alarm(self, value: Json) -> None:
        """See `World.alarm`."""

    def alarms(self) -> list[tuple[int, Json]]:
        """See `World.alarms`."""
        return []


def right(transport: IpcTransport) -> None:
    """Every all-reduce, run three times, in memory that is mapped anew for each."""
    world, checked = transport.world, 0
    for name in algorithms("allreduce"):
        if built("allreduce", name, world.size) is None:
            continue
        bound, source, target = allreduce(transport, world, name, ELEMENTS, np.int32)
        with bound:
            for turn in range(3):
                source[:] = np.arange(ELEMENTS, dtype=np.int32) * (world.rank + 1) + turn
                bound()
                ranks = world.size * (world.size + 1) // 2
                wanted = np.arange(ELEMENTS) * ranks + turn * world.size
                assert np.array_equal(target.host(), wanted), name
                checked += 1
        del bound, source, target
    world.barrier()
    transport.close()
    print(f"right {checked}")


def die(transport: IpcTransport) -> None:
    """The last rank is killed between two iterations; the others say who was lost."""
    world = transport.world
    bound, *_ = allreduce(transport, world, "ring", ELEMENTS, np.int32)
    for _ in range(2):  # the second captures the graph, for which ranks meet on the host
        bound()
    world.barrier()
    if world.rank == world.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        bound()
    except RankFailure as error:
        print(error)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    what, folder, rank, size = sys.argv[1:]
    files = Files(Path(folder), int(rank), int(size))
    gpu = GpuDevice(IpcCupy(IpcMachine(1)), 0)
    given = IpcTransport(files, gpu, deadline=60)  # type: ignore[arg-type]
    {"right": right, "die": die}[what](given)
