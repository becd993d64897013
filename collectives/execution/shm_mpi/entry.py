"""Entry of the transport ``shm+mpi``: facts known without loading it, and how it is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from collectives.execution.mpi.entry import IN_FLIGHT, SEGMENT, segments
from collectives.execution.registry import Both, Entry, Wishes, transports

if TYPE_CHECKING:
    from collectives.execution.mpi.world import MpiWorld
    from collectives.execution.transport import Transport
    from collectives.execution.world import World


def _suits(world: World, wishes: Wishes) -> bool:
    """True for several hosts with ranks that share one. Pairs are measured over MPI instead."""
    return not wishes.pairs and 1 < len(set(world.nodes)) < world.size


def _open(world: World, wishes: Wishes) -> Both:
    from collectives.execution.mpi.transport import Segments
    from collectives.execution.shm_mpi.transport import ShmMpiTransport

    ours = cast("MpiWorld", world)
    transport = ShmMpiTransport(ours, Segments(*segments(wishes)), deadline=wishes.deadline)
    return Both(transport, transports()["mpi"].open(world, wishes).transport)


def _between(world: World) -> Transport:
    from collectives.execution.shm_mpi.transport import ShmMpiTransport

    return ShmMpiTransport(cast("MpiWorld", world))


ENTRY = Entry(
    "shm+mpi",
    worlds=("mpi",),
    open=_open,
    options=(SEGMENT, IN_FLIGHT),
    turn=3,
    suits=_suits,
    between=_between,
)
