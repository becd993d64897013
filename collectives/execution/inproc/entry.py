"""Entry of the transport ``inproc``: facts known without loading it, and how it is opened."""

from typing import cast

from collectives.execution.inproc.world import InprocWorld
from collectives.execution.registry import Entry, OpenTransports, TransportRequest
from collectives.execution.world import World


def _open(world: World, request: TransportRequest) -> OpenTransports:
    from collectives.execution.inproc.transport import InprocTransport

    transport = InprocTransport(cast("InprocWorld", world))
    return OpenTransports(transport, transport)


ENTRY = Entry("inproc", worlds=("inproc",), open=_open, turn=9)
