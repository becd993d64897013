"""Entry of the transport ``nccl``: facts known without loading it, and how it is opened."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from collectives.execution.gpu.options import CACHE, GRAPH
from collectives.execution.registry import Entry, OpenTransports, TransportRequest

if TYPE_CHECKING:
    from collectives.execution.world import World


def _suits(world: World, request: TransportRequest) -> bool:
    """True if the run asks for GPUs, or every rank finds a driver."""
    from collectives.execution.gpu.take import driver_here

    return request.asks_for_gpus or all(world.gather(driver_here()))


def _open(world: World, request: TransportRequest) -> OpenTransports:
    """NCCL on this rank's GPU. Raises as `collectives.execution.gpu.take.take` does."""
    from collectives.execution.gpu.take import correctness_remarks, nccl_variables, take
    from collectives.execution.nccl.debug_log import capture_debug_log
    from collectives.execution.nccl.transport import NcclTransport

    taken = take(world, request, library=True)
    remarks = taken.remarks
    if taken.shared:
        threads = world.name == "inproc"
        version = int(taken.nccl.get_version())
        remarks = [*remarks, *correctness_remarks(version)]
        os.environ.update(
            nccl_variables(
                taken.everyone, version, world.rank, threads=threads, env=dict(os.environ)
            )
        )
    graph = GRAPH.of(request.chosen)
    with capture_debug_log(world.rank == 0) as log:
        transport = NcclTransport(
            world,
            taken.device,
            taken.nccl,
            graph=graph != "off",
            compare=graph == "compare",
            cold=CACHE.of(request.chosen) == "cold",
            deadline=request.deadline,
            log=log,
        )
    transport.remarks = remarks
    return OpenTransports(transport, transport)


ENTRY = Entry(
    "nccl",
    worlds=("mpi", "inproc"),
    open=_open,
    on_gpu=True,
    options=(GRAPH, CACHE),
    turn=1,
    suits=_suits,
)
