"""Entry of the transport ``mpi``: facts known without loading it, and how it is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from busbar.errors import Unsupported
from busbar.units import parse_size
from collectives.execution.registry import Entry, OpenTransports, Option, TransportRequest

if TYPE_CHECKING:
    from collectives.execution.mpi.world import MpiWorld
    from collectives.execution.transport import Transport
    from collectives.execution.world import World

_BUFFERS = Option(
    "--buffers",
    ("host", "device", "staged"),
    "host",
    "with --transport mpi: buffers in host memory (default), on the GPU for a CUDA-aware MPI"
    " (device), or on the GPU and staged through pinned host memory (staged)",
)


def _in_flight(text: str) -> str:
    """Check a number of segments. Raises Unsupported unless it is from 1 to 64."""
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise Unsupported(f"{text[:40]!r}: from 1 to 64 segments")
    return text


_WITH = "with --transport mpi or shm+mpi:"
SEGMENT = Option(
    "--segment", (), "512K",
    f"{_WITH} bytes of the segments that a message to be added is cut into, 0 for none (default"
    " 512K)",
    lambda text: str(parse_size(text)), "where it runs",
)  # fmt: skip
IN_FLIGHT = Option(
    "--in-flight", (), "2",
    f"{_WITH} segments of a message that are received at once, while one is added (default 2)",
    _in_flight, "where it runs",
)  # fmt: skip


def segments(request: TransportRequest) -> tuple[int, int]:
    """Bytes of a segment (0: messages are not cut), and segments of a message received at once."""
    return parse_size(SEGMENT.of(request.chosen)), int(IN_FLIGHT.of(request.chosen))


def _open(world: World, request: TransportRequest) -> OpenTransports:
    """The transport over MPI, with windows if put and get are measured."""
    from collectives.execution.mpi.transport import MpiTransport, Segments

    ours = cast("MpiWorld", world)
    buffers = _BUFFERS.of(request.chosen) if request.name == "mpi" else "host"
    if buffers != "host":
        return _of_gpus(ours, request, buffers)
    transport = MpiTransport(ours, Segments(*segments(request)), reached=request.reached)
    return OpenTransports(transport, MpiTransport(ours) if request.reached else transport)


def _between(world: World) -> Transport:
    """MPI's messages alone."""
    from collectives.execution.mpi.transport import MpiTransport

    return MpiTransport(cast("MpiWorld", world))


def _of_gpus(world: MpiWorld, request: TransportRequest, buffers: str) -> OpenTransports:
    """MPI between GPU buffers. Raises as `collectives.execution.gpu.take.take` does."""
    from collectives.execution.gpu.take import take
    from collectives.execution.mpi.device import MpiDeviceTransport, takes_device_memory

    taken = take(world, request, library=False)
    aware = all(world.gather(takes_device_memory(world.mpi))) and buffers == "device"
    transport = MpiDeviceTransport(world, taken.device, aware=aware)
    transport.remarks += taken.remarks
    return OpenTransports(transport, transport)


ENTRY = Entry(
    "mpi",
    worlds=("mpi",),
    open=_open,
    on_gpu_with=_BUFFERS,
    options=(_BUFFERS, SEGMENT, IN_FLIGHT),
    turn=9,
    between=_between,
)
