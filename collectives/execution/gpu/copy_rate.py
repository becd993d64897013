"""The roofline of ranks that share one GPU: the measured rate of copies in its memory.

All ranks copy at once, each between two buffers of its own, since plans run at once too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collectives.execution.gpu.action import StreamAction
from collectives.execution.gpu.lane import Lane
from collectives.execution.roofline import Roofline
from collectives.execution.transport import Array, Start

Call = Callable[[], Any]


def roofline(lane: Lane, meet: list[Call], source: Array, target: Array, n: int) -> Roofline:
    """From n copies on every rank of as many bytes as the largest buffer of any has.

    A copy reads and writes each byte once, and a memory gives reads and writes alike, so that what
    is only read or only written takes half as long. ``target`` loses its content. All ranks call
    this together, while no plan runs.
    """
    shorter = lane.world.gather(min(source.nbytes, target.nbytes))
    nbytes = max(1, *map(int, shorter))
    device, held = lane.device, []
    places = []
    for array in (source, target):
        given: Any = array
        if array.nbytes < nbytes:
            given = device.allocate(nbytes)
            held.append(given)
        places.append(given.address)
    lane.world.barrier()

    def copy() -> None:
        device.copy(places[1], places[0], nbytes, lane.stream)

    action = StreamAction(lane, [[copy]], (0, 0), meet=meet, graph=False, held=held)
    slowest = lane.world.combine(action.spans(n, Start(lane.world.barrier)).seconds, "max")
    action.close()
    rate = lane.world.size * nbytes / max(float(np.median(slowest)), 1e-9)
    return Roofline(read=2 * rate, write=2 * rate, copy=rate, update=rate)
