"""The memory roofline of this run's host, measured together with the rows.

Transports that can measure it have a method ``limit`` (shm). docs/measuring-limit.md defines it.
"""

from __future__ import annotations

import time

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.roofline import least
from collectives.execution.transport import LibraryCall, Transport
from collectives.execution.world import World
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer

# Below this size a collective's time is that of signals between ranks, not of moving bytes.
LEAST_BYTES = 64 << 10
# Most sweeps of each kind, and the seconds for them. Sweeps of small sizes vary most, so they may
# have MORE_SWEEPS, but within MORE_BUDGET seconds.
SWEEPS, BUDGET = 5, 1.0
MORE_SWEEPS, MORE_BUDGET = 100, 0.1


class Rooflines:
    """Measures the roofline once for each size and placement; all ranks call every method together.

    ``transport``: the one that carries the rows. If it has no roofline, there is no limit.
    ``wanted``: False to measure nothing. ``why``: the reason if the transport's roofline failed.
    """

    def __init__(self, world: World, transport: Transport, wanted: bool = True) -> None:
        self._world = world
        self._transport = transport if wanted else None
        self._known: dict[tuple[object, ...], float] = {}
        self.why = ""

    def limit(self, layout: Layout, call: LibraryCall) -> float | None:
        """The shortest possible time of a collective, in seconds; None if there is no roofline.

        The call's buffers are the row's own on this rank; their content is overwritten.
        """
        itemsize = call.buffers[Buffer.OUT].itemsize
        if (
            self._transport is None
            or max(least(layout, call.elements, itemsize, call.in_place)) < LEAST_BYTES
        ):
            return None
        elements = np.asarray(call.elements).tobytes()
        key = call.spec.name, call.root, call.in_place, itemsize, elements
        if key not in self._known:
            try:
                seconds = self._probed(call)
            except Unsupported as error:
                self.why, seconds = str(error), None
            if seconds is None:
                self._transport = None
                return None
            self._known[key] = seconds
        return self._known[key]

    def _probed(self, call: LibraryCall) -> float | None:
        """Measure with as many sweeps as fit into the budgets, judged by one sweep of each kind."""
        assert self._transport is not None
        start = time.perf_counter()
        seconds = self._transport.limit(call, 1)
        if seconds is None:
            return None
        spent = self._world.combine(np.array([time.perf_counter() - start]), "max")[0]
        n = max(min(SWEEPS, int(BUDGET / spent)), min(MORE_SWEEPS, int(MORE_BUDGET / spent)))
        return self._transport.limit(call, n) if n > 1 else seconds
