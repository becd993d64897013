"""The fewest bytes that a collective must move, and the typical time of sweeps over them.

docs/measuring-limit.md has the definition and its reasons.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.execution.world import World
from collectives.schedule.layout import Elements, Layout
from collectives.schedule.moves import Buffer


class Least(NamedTuple):
    """The fewest bytes that all ranks together must read and write, whatever the algorithm."""

    reads: int
    writes: int


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
    return Least(reads, writes)


def typical(mine: NDArray[np.float64], world: World) -> float:
    """The median of the slowest rank's seconds; ``mine``: this rank's of every sweep.

    Sweeps that took more than twice the shortest time are left out: another process had the core.
    """
    slowest = world.combine(mine, "max")
    return float(np.median(slowest[slowest <= 2 * slowest.min()]))
