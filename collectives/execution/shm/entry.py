"""Entry of the transport ``shm``: facts known without loading it, and how it is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectives.execution.registry import Entry, OpenTransports, TransportRequest, transports

if TYPE_CHECKING:
    from collectives.execution.transport import Transport
    from collectives.execution.world import World


def _suits(world: World, request: TransportRequest) -> bool:
    """True if all ranks are on one host; False when pairs are measured, which is done over MPI."""
    return not request.pairs and max(world.nodes) == 0 and world.size > 1


def _open(world: World, request: TransportRequest) -> OpenTransports:
    """The transport, and MPI's messages to compare it with."""
    from collectives.execution.shm.transport import ShmTransport

    transport = ShmTransport(world, deadline=request.deadline)
    return OpenTransports(transport, transports()["mpi"].open(world, request).transport)


def _between(world: World) -> Transport:
    """The transport alone."""
    from collectives.execution.shm.transport import ShmTransport

    return ShmTransport(world)


ENTRY = Entry(
    "shm", worlds=("mpi",), open=_open, turn=2, suits=_suits, between=_between, maps_memory=True
)
