"""One rank under mpirun: MPI over buffers of a GPU that is not there, handed over and staged."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Any

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.mpi import device
from collectives.execution.mpi.device import MpiDeviceTransport
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.transport import LibraryCall
from collectives.schedule.catalogue import spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from tests.collectives.executing import carry_out, in_turn, judge
from tests.gpu_standin import Cupy, Machine


def check_staging(world: MpiWorld, transport: MpiDeviceTransport) -> None:
    """A staged library row copies ``in`` to the host and ``out`` to the device, and no more."""
    copied: list[int] = []
    copy = transport.device.copy

    def counted(target: int, source: int, nbytes: int, stream: Any) -> None:
        copied.append(nbytes)
        copy(target, source, nbytes, stream)

    transport.device.copy = counted  # type: ignore[method-assign]
    for in_place in (False, True):
        what, elements = spec("allgather"), 100
        layout = Layout(what, world.size, world.size)
        out = transport.allocate(4 * elements * world.size).view(np.float32)
        part = slice(elements * world.rank, elements * (world.rank + 1))
        own = out[part] if in_place else transport.allocate(4 * elements).view(np.float32)
        own[:] = np.full(elements, world.rank, np.float32)
        assert layout.elements(world.rank, Buffer.OUT, elements) == len(out)
        call = LibraryCall(
            what, {Buffer.IN: own, Buffer.OUT: out}, None, elements, in_place=in_place
        )
        with closing(transport.library(call)) as action:
            copied.clear()
            action()
        assert sum(copied) == own.nbytes + out.nbytes, (in_place, copied)
        assert np.array_equal(out.host(), np.repeat(np.arange(world.size), elements))
    transport.device.copy = copy  # type: ignore[method-assign]


def main() -> None:
    """Every algorithm of every collective, and the library's, both ways; some in pieces."""
    world = MpiWorld()
    cases = list(in_turn(world.size, (37,), kinds=("float",)))
    most = device.MOST_BYTES
    # The counts of all-to-all(v) are the subject of the host's tests.
    library = [
        case._replace(name="library", schedule=None)
        for case in in_turn(world.size, (37,), kinds=("float",), first=True)
        if case.what.name != "alltoallv"
    ]
    for aware in (True, False):
        transport = MpiDeviceTransport(world, GpuDevice(Cupy(Machine(1)), 0), aware=aware)
        if not aware:
            check_staging(world, transport)
        for case in (*cases, *library):
            try:
                carry_out(world, transport, judge(case, world.size))
            except Unsupported:
                assert case.schedule is None, str(case)
        device.MOST_BYTES = 48  # type: ignore[misc]
        for case in cases[::7]:
            carry_out(world, transport, judge(case, world.size))
        device.MOST_BYTES = most  # type: ignore[misc]
    if world.rank == 0:
        sys.stdout.write("all right\n")


if __name__ == "__main__":
    main()
