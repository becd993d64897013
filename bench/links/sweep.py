"""The sweep over message sizes between pairs of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from bench.links.measuring import Settings
from bench.links.pairs import PairTimer
from busbar.errors import ProbeError
from collectives.execution.world import World
from topology.measured.matrix import Pair
from topology.measured.sweep import BLOCKS, SWEPT, repetitions, sizes

_WARMUP = 2
_MOST_RANKS = 64


def sweep(
    world: World,
    schedule: Sequence[Sequence[Pair]],
    over: PairTimer,
    settings: Settings,
    progress: Callable[[int, int], None],
) -> dict[tuple[Pair, str, int], list[float]]:
    """Time the pairs of a schedule at all sizes up to ``settings.sweep``; collective.

    All ranks get the blocks' medians.
    ``progress(done, all)`` is called on rank 0 before every block of a round. Raises ProbeError for
    more ranks than a sweep through all pairs is meant for.
    """
    if world.size > _MOST_RANKS:
        reason = f"--sweep goes through all pairs of up to {_MOST_RANKS} ranks, not of {world.size}"
        raise ProbeError("measure", reason)
    cells = [(name, nbytes) for name in SWEPT for nbytes in sizes(name, settings.sweep)]
    pairs = [pair for together in schedule for pair in together]
    # A row a cell and block, a column a pair, filled in by its first rank.
    table = np.zeros((len(cells), BLOCKS, len(pairs)))
    for block in range(BLOCKS):
        for number, together in enumerate(schedule):
            if world.rank == 0:
                progress(block * len(schedule) + number, BLOCKS * len(schedule))
            world.barrier()
            mine = [pairs.index(pair) for pair in together if pair[0] == world.rank]
            for row, (name, nbytes) in enumerate(cells):
                times = over.times(name, together, nbytes, _WARMUP + repetitions(nbytes))
                if times:
                    table[row, block, mine] = median(times[_WARMUP:])
    whole = world.combine(table.ravel(), "max").reshape(table.shape)
    return {
        (pair, name, nbytes): whole[row, :, column].tolist()
        for row, (name, nbytes) in enumerate(cells)
        for column, pair in enumerate(pairs)
    }
