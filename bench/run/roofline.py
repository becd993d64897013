"""The memory roofline of this run's host, measured beside the rows.

Transports that can measure it have a ``roofline`` (shm has). docs/measuring-limit.md defines it.
"""

from __future__ import annotations

import time

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.roofline import Roofline, least
from collectives.execution.transport import Array, Transport
from collectives.execution.world import World
from collectives.schedule.layout import Elements, Layout

# Below this much a collective's time is that of signals between ranks, and not of bytes.
LEAST_BYTES = 64 << 10
# Of all ranks together. More says nothing new: no cache is so large that rates still change.
MOST_BYTES = 512 << 20
# Sweeps of each kind that a probe does within so many seconds, and how many more of a small size,
# whose sweeps vary most, within fewer.
SWEEPS, BUDGET = 5, 1.0
MORE_SWEEPS, MORE_BUDGET = 100, 0.1


class Rooflines:
    """Probes each size and placement once; every method is called by all ranks alike.

    ``transport``: whatever carries the rows; where it knows no roofline there is no limit.
    ``wanted``: whether to probe at all. ``why``: why there is none although the transport has one.
    """

    def __init__(self, world: World, transport: Transport, wanted: bool = True) -> None:
        self._world = world
        self._transport = transport if wanted else None
        self._known: dict[tuple[int, bool], Roofline] = {}
        self.why = ""

    def limit(
        self,
        layout: Layout,
        elements: Elements,
        in_place: bool,
        source: Array,
        target: Array,
    ) -> float | None:
        """The least seconds for a collective of these elements; None if there is no roofline.

        ``source`` and ``target`` are the row's own buffers on this rank, which lose their content.
        """
        needed = least(layout, elements, source.itemsize, in_place)
        if self._transport is None or max(needed.reads, needed.writes) < LEAST_BYTES:
            return None
        pair = _raw(source, target)
        nbytes = int(self._world.combine(np.array([float(len(pair[0]))]), "min")[0])
        nbytes = min(nbytes, MOST_BYTES // self._world.size) // 8 * 8
        if not nbytes:
            return None
        key = nbytes, in_place
        if key not in self._known:
            try:
                seconds = self._probed(*(one[:nbytes] for one in pair))
            except Unsupported as error:
                self.why, seconds = str(error), None
            if seconds is None:
                self._transport = None
                return None
            self._known[key] = seconds
        return self._known[key].seconds(needed)

    def _probed(self, source: Array, target: Array) -> Roofline | None:
        """As many sweeps as the budgets allow, by the time that one of each kind takes."""
        assert self._transport is not None
        start = time.perf_counter()
        seconds = self._transport.roofline(source, target, 1)
        if seconds is None:
            return None
        spent = self._world.combine(np.array([time.perf_counter() - start]), "max")[0]
        n = max(min(SWEEPS, int(BUDGET / spent)), min(MORE_SWEEPS, int(MORE_BUDGET / spent)))
        return self._transport.roofline(source, target, n) if n > 1 else seconds


def _raw(source: Array, target: Array) -> tuple[Array, Array]:
    """The bytes of both, equally many; a rank that has only one of them takes its halves."""
    pair = sorted((a.view(np.uint8) for a in (source, target)), key=len)
    if not len(pair[0]):
        half = len(pair[1]) // 16 * 8
        return pair[1][:half], pair[1][half : 2 * half]
    nbytes = len(pair[0])
    return source.view(np.uint8)[:nbytes], target.view(np.uint8)[:nbytes]
