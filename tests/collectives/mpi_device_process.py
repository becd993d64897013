"""One rank under mpirun: MPI over buffers of a GPU that is not there, handed over and staged."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.mpi.device import MpiDeviceTransport
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.plan import Plan
from collectives.execution.transport import LibraryCall
from collectives.schedule.catalogue import algorithms, build, collectives, spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op
from collectives.schedule.spec import Unit
from tests.collectives.cases import expected, inputs
from tests.gpu_standin import Cupy, Machine


def _fire(transport: MpiDeviceTransport, name: str, algorithm: str, in_place: bool) -> None:
    world, what = transport.world, spec(name)
    elements: Any = 1 if what.unit is Unit.NOTHING else 37
    if algorithm == "library":
        schedule = None
        layout = Layout(what, world.size, what.parts(world.size))
    else:
        schedule = build(name, algorithm, world.size)
        layout = Layout.of(schedule, what)
    joined = op("max" if what.idempotent else "sum")
    given = inputs(layout, elements, np.dtype(np.float32), False)
    wanted = expected(layout, elements, given, joined.ufunc)[world.rank]
    sizes = [layout.elements(world.rank, b, elements) for b in (Buffer.IN, Buffer.OUT)]
    source, target = (transport.allocate(n * 4).view(np.float32) for n in sizes)
    if in_place:  # all-reduce: the same memory
        source = target
    used = joined if what.reduces else None
    if schedule is None:
        buffers = {Buffer.IN: source, Buffer.OUT: target}
        action: Any = transport.library(
            LibraryCall(what, buffers, used, elements, in_place=in_place)
        )
    else:
        where: Any = (source, target, used, elements)
        action = Plan(schedule, what, transport, world.rank, *where, in_place=in_place)
    for _ in range(2):
        target.view(np.uint8)[:] = 0xA5
        source[:] = given[world.rank]
        world.barrier()
        action()
        if algorithm != "library" or what.unit is not Unit.NOTHING:
            same = np.array_equal(target.host(), wanted)
            assert same, f"{name} {algorithm} aware {transport.aware}: rank {world.rank} is wrong"
    action.close()


def main() -> None:
    """Every algorithm of every collective, and the library's, both ways."""
    world = MpiWorld()
    for aware in (True, False):
        transport = MpiDeviceTransport(world, GpuDevice(Cupy(Machine(1)), 0), aware=aware)
        for name in collectives():
            for algorithm in [*algorithms(name), "library"]:
                if name == "alltoallv" and algorithm == "library":
                    continue  # its counts are the subject of the host's tests
                for in_place in (False, True) if name == "allreduce" else (False,):
                    try:
                        _fire(transport, name, algorithm, in_place)
                    except Unsupported:
                        continue
    if world.rank == 0:
        sys.stdout.write("all right\n")


if __name__ == "__main__":
    main()
