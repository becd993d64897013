"""Entry of the transport ``ipc``: facts known without loading it, and how it is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from busbar.errors import Unavailable, Unsupported
from collectives.execution.gpu.options import CACHE, GRAPH
from collectives.execution.registry import (
    Entry,
    OpenTransports,
    Option,
    TransportRequest,
    transports,
)

if TYPE_CHECKING:
    from collectives.execution.world import World

_BLOCKS = Option(
    "--blocks",
    ("all", "16", "32", "64", "128", "256"),
    "all",
    "blocks of 512 threads of a rank over ipc, at most; all (default): as many as are resident",
)
_ORDER = Option(
    "--add-order",
    ("rotated", "rank"),
    "rotated",
    "over ipc, the order in which a pass adds the ranks' data. rotated (default): the next rank's"
    " first, so that ranks read from different GPUs; rank: rank 0's first everywhere, so that"
    " one_shot gives the same bits on all ranks",
)


def _open(world: World, request: TransportRequest) -> OpenTransports:
    """The transport on this rank's GPU, with NCCL on it as the baseline.

    Raises as `collectives.execution.gpu.take.take` does. If NCCL cannot be used, the ipc transport
    is returned for both, and a remark says why.
    """
    from collectives.execution.gpu.take import take
    from collectives.execution.ipc.transport import IpcTransport

    taken = take(world, request, library=False)
    transport = IpcTransport(
        world,
        taken.device,
        graph=GRAPH.of(request.chosen) != "off",
        cold=CACHE.of(request.chosen) == "cold",
        blocks=0 if (blocks := _BLOCKS.of(request.chosen)) == "all" else int(blocks),
        rotated=_ORDER.of(request.chosen) == "rotated",
        deadline=request.deadline,
    )
    transport.remarks += taken.remarks
    try:
        baseline = transports()["nccl"].open(world, request).transport
    except (Unsupported, Unavailable) as error:  # the same on every rank
        transport.remarks.append(f"without NCCL to compare with: {error}")
        return OpenTransports(transport, transport)
    transport.remarks += [r for r in baseline.remarks if r not in transport.remarks]
    return OpenTransports(transport, baseline)


ENTRY = Entry("ipc", worlds=("mpi", "inproc"), open=_open, on_gpu=True, options=(_BLOCKS, _ORDER))
