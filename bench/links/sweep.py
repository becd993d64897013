"""The sweep over message sizes between pairs of ranks."""

from __future__ import annotations

from statistics import median

import numpy as np

from bench.links.measuring import PairRun
from busbar.errors import ProbeError
from topology.measured.matrix import Pair
from topology.measured.sweep import BLOCKS, SWEPT, repetitions, sizes

_WARMUP = 2
_MOST_RANKS = 64


def sweep(run: PairRun) -> dict[tuple[Pair, str, int], list[float]]:
    """Time the pairs of a run at all sizes up to its settings' ``sweep``; collective.

    All ranks get the blocks' medians. Raises ProbeError for more ranks than a sweep through all
    pairs is meant for.
    """
    world = run.world
    if world.size > _MOST_RANKS:
        reason = f"--sweep goes through all pairs of up to {_MOST_RANKS} ranks, not of {world.size}"
        raise ProbeError("measure", reason)
    cells = [(name, nbytes) for name in SWEPT for nbytes in sizes(name, run.settings.sweep)]
    pairs = [pair for together in run.schedule for pair in together]
    # A row a cell and block, a column a pair, filled in by its first rank.
    table = np.zeros((len(cells), BLOCKS, len(pairs)))
    for block in range(BLOCKS):
        for together in run.rounds(block, BLOCKS):
            mine = [pairs.index(pair) for pair in together if pair[0] == world.rank]
            for row, (name, nbytes) in enumerate(cells):
                times = run.over.times(name, together, nbytes, _WARMUP + repetitions(nbytes))
                if times:
                    table[row, block, mine] = median(times[_WARMUP:])
    whole = world.combine(table.ravel(), "max").reshape(table.shape)
    return {
        (pair, name, nbytes): whole[row, :, column].tolist()
        for row, (name, nbytes) in enumerate(cells)
        for column, pair in enumerate(pairs)
    }
