"""Entry of the transport ``shm+mpi``: facts known without loading it, and how it is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from collectives.execution.mpi.entry import IN_FLIGHT, SEGMENT, segments
from collectives.execution.registry import Entry, OpenTransports, TransportRequest, transports

if TYPE_CHECKING:
    from collectives.execution.mpi.world import MpiWorld
    from collectives.execution.transport import Transport
    from collectives.execution.world import World


def _suits(world: World, request: TransportRequest) -> bool:
    """True for several hosts with ranks that share one. Pairs are measured over MPI instead."""
    return not request.pairs and 1 < len(set(world.nodes)) < world.size


def _open(world: World, request: TransportRequest) -> OpenTransports:
    """The transport, and MPI's messages to compare it with."""
    from collectives.execution.mpi.transport import Segments
    from collectives.execution.shm_mpi.transport import ShmMpiTransport

    ours = cast("MpiWorld", world)
    transport = ShmMpiTransport(ours, Segments(*segments(request)), deadline=request.deadline)
    return OpenTransports(transport, transports()["mpi"].open(world, request).transport)


def _between(world: World) -> Transport:
    """The transport alone."""
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
