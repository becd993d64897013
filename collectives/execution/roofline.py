"""The memory roofline of this host for these ranks and sizes, with which shm is compared.

All ranks sweep their own buffers at once, and each sweep ends when all have ended, as in a
collective. docs/measuring-limit.md has the definition and its reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectives.execution.world import World
from collectives.schedule.layout import Elements, Layout
from collectives.schedule.moves import Buffer


@dataclass(frozen=True)
class Least:
    """The fewest bytes that all ranks together must read and write, whatever the algorithm.

    ``together``: written bytes replace those that were read (an all-reduce in place).
    """

    reads: int
    writes: int
    together: bool


@dataclass(frozen=True)
class Roofline:
    """Bytes per second of all ranks together; the faster of cached and streaming stores.

    ``copy`` and ``update`` count a byte that is read and written once: copied to another buffer, or
    updated in place.
    """

    read: float
    write: float
    copy: float
    update: float

    def seconds(self, bytes_: Least) -> float:
        """The shortest time to move these bytes: as many as possible are copied."""
        both = min(bytes_.reads, bytes_.writes)
        paired = both / (self.update if bytes_.together else self.copy)
        return paired + (bytes_.reads - both) / self.read + (bytes_.writes - both) / self.write


def least(layout: Layout, elements: Elements, itemsize: int, in_place: bool) -> Least:
    """The bytes that a collective must read and write: every input once, every output once.

    In place, an output that equals the rank's own input (its part of an all-gather) is neither read
    nor written.
    """
    reads = writes = 0
    for rank in range(layout.nranks):
        ins = layout.elements(rank, Buffer.IN, elements)
        outs = layout.elements(rank, Buffer.OUT, elements)
        if in_place and not layout.spec.reduces:
            outs -= min(ins, outs)
        reads, writes = reads + ins * itemsize, writes + outs * itemsize
    return Least(reads, writes, in_place and layout.spec.reduces)


Sweep = Callable[[str, bool], NDArray[np.float64]]
"""``sweep(kind, stream)``: seconds of this rank for each of a few sweeps."""


def probe(sweep: Sweep, world: World, nbytes: int) -> Roofline:
    """Measure the rates with sweeps over ``nbytes`` on every rank; medians, as for rows.

    Sweeps that took more than twice the shortest time are left out: another process had the core.
    All ranks call this together.
    """

    def best(kind: str, *streams: bool) -> float:
        slowest = [world.combine(sweep(kind, stream), "max") for stream in streams]
        calm = [times[times <= 2 * times.min()] for times in slowest]
        return world.size * nbytes / min(float(np.median(times)) for times in calm)

    return Roofline(
        best("read", False),
        best("write", False, True),
        best("copy", False, True),
        best("update", False),
    )
