"""One rank under mpirun: MPI over buffers of a GPU that is not there, handed over and staged."""

from __future__ import annotations

import sys

from busbar.errors import Unsupported
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.mpi.device import MpiDeviceTransport
from collectives.execution.mpi.world import MpiWorld
from tests.collectives.executing import carry_out, in_turn, judge
from tests.gpu_standin import Cupy, Machine


def main() -> None:
    """Every algorithm of every collective, and the library's, both ways."""
    world = MpiWorld()
    cases = list(in_turn(world.size, (37,), kinds=("float",)))
    # The counts of all-to-all(v) are the subject of the host's tests.
    library = [
        case._replace(name="library", schedule=None)
        for case in in_turn(world.size, (37,), kinds=("float",), first=True)
        if case.what.name != "alltoallv"
    ]
    for aware in (True, False):
        transport = MpiDeviceTransport(world, GpuDevice(Cupy(Machine(1)), 0), aware=aware)
        for case in (*cases, *library):
            try:
                carry_out(world, transport, judge(case, world.size))
            except Unsupported:
                assert case.schedule is None, str(case)
    if world.rank == 0:
        sys.stdout.write("all right\n")


if __name__ == "__main__":
    main()
