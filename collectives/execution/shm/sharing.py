"""Finds a kind of memory that all ranks of this host can map, by trying it together."""

from __future__ import annotations

from busbar.errors import Unavailable, Unsupported
from collectives.execution.shm.memory import Memory
from collectives.execution.shm.windows import Windows
from collectives.execution.world import Json, World

MEMORIES = ("auto", "memfd", "windows")


def sharing(world: World, memory: str) -> Memory | Windows:
    """Memory that all ranks can map. All ranks call this together.

    ``memory`` is one of `MEMORIES`; ``auto`` goes on to MPI-3 windows where memfd fails. Raises
    Unsupported for another, Unavailable where nothing can be shared.
    """
    if memory not in MEMORIES:
        raise Unsupported(f"no memory {memory!r}; there are: {', '.join(MEMORIES)}")
    if memory == "windows":
        return Windows(world)
    found = Memory()
    failed = ""
    try:
        trial = found.allocate(1)
        where: Json = found.describe(trial.key)
    except Unavailable as error:
        failed, where = str(error), None
    for other in world.gather(where):
        try:
            if other is not None:
                found.attach(other)
        except Unavailable as error:
            failed = str(error)
    reasons = [reason for reason in world.gather(failed) if reason]
    if not reasons:
        return found
    if memory == "memfd" or not hasattr(world, "comm"):
        raise Unavailable(reasons[0])
    return Windows(world)
