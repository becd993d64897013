"""NCCL's communicators: created by all ranks together, used in grouped calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from busbar.errors import Unavailable
from collectives.execution.world import World


@contextmanager
def grouped(nccl: Any) -> Iterator[None]:
    """A group of calls that go at once; it is ended also when one of them fails."""
    nccl.groupStart()
    try:
        yield
    except BaseException:
        # The calls' own error is the one to report.
        with suppress(RuntimeError):
            nccl.groupEnd()
        raise
    nccl.groupEnd()


def join(world: World, nccl: Any, where: str) -> Any:
    """A communicator of all ranks, by the unique id that rank 0 hands round.

    ``where``: this rank's GPU. Raises Unavailable on all ranks where one cannot join.
    """
    # A tuple before CuPy 14, bytes since.
    mine = nccl.get_unique_id() if world.rank == 0 else b""
    given = world.broadcast([isinstance(mine, bytes), list(mine)])
    unique = bytes(given[1]) if given[0] else tuple(given[1])
    try:
        comm, problem = nccl.NcclCommunicator(world.size, unique, world.rank), ""
    except RuntimeError as error:
        comm, problem = None, f"rank {world.rank} on GPU {where}: {error}"
    problems = [one for one in world.gather(problem) if one]
    if problems:
        raise Unavailable(f"no NCCL communicator: {problems[0]} (NCCL_DEBUG=WARN says more)")
    return comm
