"""One process of test_shm_processes.py.

``right MEMORY`` under mpirun compares results (MEMORY ``hidden``: ``auto`` where no process may
look into another's files); ``windows`` looks at MPI's windows; ``die FOLDER RANK SIZE ALGORITHM``,
without a launcher, kills the last rank inside a collective.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from busbar.errors import RankFailure, Unavailable
from collectives.execution.shm.memory import Memory
from collectives.execution.shm.transport import ShmTransport
from collectives.execution.transport import LibraryCall
from collectives.execution.world import How, Json, World
from collectives.schedule.catalogue import algorithms, spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op
from tests.collectives.cases import built
from tests.collectives.executing import allreduce

if TYPE_CHECKING:
    from collectives.execution.mpi.world import MpiWorld


def right(world: World, transport: ShmTransport, names: Sequence[str]) -> None:
    """These all-reduces, small and large, both placements, three iterations each."""
    checked = 0
    for name in names:
        if built("allreduce", name, world.size) is None:
            continue
        for elements in (3, 70_001):
            for in_place in (False, True):
                plan, source, target = allreduce(
                    transport, world, name, elements, np.int64, in_place=in_place
                )
                with plan:
                    for turn in range(3):
                        source[:] = np.arange(elements) * (world.rank + 1) + turn
                        plan()
                        ranks = world.size * (world.size + 1) // 2
                        wanted = np.arange(elements) * ranks + turn * world.size
                        assert np.array_equal(target, wanted), f"{name} {elements} {in_place}"
                        checked += 1
                del plan, source, target
                # What earlier plans took is given back; of windows, which know when, one can tell.
                transport.trim()
                assert len(getattr(transport.memory, "_windows", ())) <= 8
    if world.rank == 0:
        print(f"right {checked}", flush=True)


def windows(world: MpiWorld) -> None:
    """Each part begins at a page and is all of the rank's; a limit allocates on some ranks alone.

    Of 64 Ki elements on three ranks, cut at whole pages, one rank sweeps more than it has.
    """
    transport = ShmTransport(world, memory="windows")
    memory = transport.memory
    for nbytes in (1, 37, 4097):
        own = memory.allocate(nbytes + world.rank)
        own.array[:] = world.rank + 1
        everyone = world.gather(memory.describe(own.key))
        for rank, where in enumerate(everyone):
            array = own.array if rank == world.rank else memory.attach(where)
            assert array.ctypes.data % 4096 == 0, (rank, hex(array.ctypes.data))
            assert len(array) == nbytes + rank and (array == rank + 1).all()
            del array
        world.barrier()
    elements, what = 1 << 16, spec("reduce")
    layout = Layout(what, world.size, what.parts(world.size), 1)
    source = transport.allocate(4 * elements).view(np.float32)
    source[:] = 1
    target = source[: layout.elements(world.rank, Buffer.OUT, elements)]
    buffers = {Buffer.IN: source, Buffer.OUT: target}
    call = LibraryCall(what, buffers, op("sum"), elements, 1, in_place=True)
    assert transport.limit(call) > 0
    transport.close()


def die(world: FileWorld, algorithm: str) -> None:
    """Kill the last rank inside the loop.

    The others print what they still map once they have closed, and who was lost.
    """
    transport = ShmTransport(world)  # type: ignore[arg-type]
    plan, *buffers = allreduce(transport, world, algorithm, 1 << 20)  # type: ignore[arg-type]
    plan()
    world.barrier()
    if world.rank == world.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            plan()
    except RankFailure as error:
        status, said = error.exit_status, str(error)
    plan.close()
    transport.close()
    del plan, buffers, transport
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    print(f"{sum('memfd:busbar' in line for line in maps)} {said}")
    sys.exit(status)


def hide() -> None:
    """As where ``/proc`` hides the other ranks' processes."""

    def attach(_: Memory, found: object) -> None:
        raise Unavailable(f"cannot map {found}")

    Memory.attach = attach  # type: ignore[method-assign, assignment]


class FileWorld:
    """A control plane through files in a folder: no launcher that ends the survivors."""

    name = "files"

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.folder, self.rank, self.size = folder, rank, size
        self.nodes = (0,) * size
        self._round = 0

    def gather(self, value: Json) -> list[Json]:
        """See `World.gather`."""
        self._round += 1
        mine = self.folder / f"{self._round}.{self.rank}"
        (self.folder / f"{mine.name}.new").write_text(json.dumps(value))
        (self.folder / f"{mine.name}.new").rename(mine)
        places = [self.folder / f"{self._round}.{r}" for r in range(self.size)]
        while not all(place.exists() for place in places):
            os.sched_yield()
        return [json.loads(place.read_text()) for place in places]

    def broadcast(self, value: Json, root: int = 0) -> Json:
        """See `World.broadcast`."""
        return self.gather(value)[root]

    def combine(self, values: NDArray[np.float64], how: How) -> NDArray[np.float64]:
        """See `World.combine`; what the transport asks for is the greatest."""
        assert how == "max"
        found: NDArray[np.float64] = np.max(self.gather(values.tolist()), axis=0)
        return found

    def barrier(self) -> None:
        """See `World.barrier`."""
        self.gather(None)

    def rest(self) -> None:
        """See `World.rest`."""
        self.barrier()


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "right":
        from collectives.execution.mpi.world import MpiWorld

        the_world = MpiWorld()
        hidden = rest[0] == "hidden"
        if hidden:
            hide()
        kind = "auto" if hidden else rest[0]
        the_transport = ShmTransport(the_world, memory=kind)
        assert the_transport.memory.collective == (rest[0] in ("hidden", "windows"))
        # Another way to the same windows: one schedule says that they serve.
        right(the_world, the_transport, ["ring"] if hidden else list(algorithms("allreduce")))
        the_transport.close()
    elif what == "windows":
        from collectives.execution.mpi.world import MpiWorld

        windows(MpiWorld())
    else:
        files = FileWorld(Path(rest[0]), int(rest[1]), int(rest[2]))
        die(files, rest[3])
