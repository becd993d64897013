"""The sweep through message sizes between MPI ranks: who does what when, and how rank 0 gets it all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from bench.links.exchange import Exchange
from busbar.errors import ProbeError
from topology.measured.matrix import Pair
from topology.measured.sweep import BLOCKS, SWEPT, repetitions, sizes

if TYPE_CHECKING:
    from mpi4py import MPI

    from bench.links.measuring import Settings

_WARMUP = 2
_MOST_RANKS = 64


def sweep(
    comm: MPI.Intracomm,
    schedule: Sequence[Sequence[Pair]],
    exchange: Exchange,
    settings: Settings,
    progress: Callable[[int, int], None],
) -> dict[tuple[Pair, str, int], list[float]] | None:
    """Time the pairs of a schedule at all sizes up to ``settings.sweep``; collective.

    Rank 0 gets the blocks' medians.
    ``progress(done, all)`` is called on rank 0 before every block of a round. Raises ProbeError for
    more ranks than a sweep through all pairs is meant for.
    """
    if comm.size > _MOST_RANKS:
        reason = f"--sweep goes through all pairs of up to {_MOST_RANKS} ranks, not of {comm.size}"
        raise ProbeError("measure", reason)
    cells = [(name, nbytes) for name in SWEPT for nbytes in sizes(name, settings.sweep)]
    pairs = [pair for together in schedule for pair in together]
    # A row a cell and block, a column a pair, filled in by its first rank.
    table = np.zeros((len(cells), BLOCKS, len(pairs)))
    for block in range(BLOCKS):
        for number, together in enumerate(schedule):
            if comm.rank == 0:
                progress(block * len(schedule) + number, BLOCKS * len(schedule))
            comm.Barrier()
            mine = [pairs.index(pair) for pair in together if pair[0] == comm.rank]
            for row, (name, nbytes) in enumerate(cells):
                times = exchange.times(name, together, nbytes, _WARMUP + repetitions(nbytes))
                if times:
                    table[row, block, mine] = median(times[_WARMUP:])
    whole = np.zeros_like(table)
    comm.Reduce(table, whole, root=0)
    if comm.rank != 0:
        return None
    return {
        (pair, name, nbytes): whole[row, :, column].tolist()
        for row, (name, nbytes) in enumerate(cells)
        for column, pair in enumerate(pairs)
    }
