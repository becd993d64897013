"""Which chunks are in another core's cache, from the schedule's reads and writes.

If ranks share memory, data that another core has just written must be fetched from its cache.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collectives.predict.machine import Flags
from collectives.schedule.moves import Buffer, Moves
from collectives.schedule.schedule import Schedule

# With more ranks x chunks than this, flags are kept per rank only.
_MOST_CHUNKS = 1 << 22


class Caches:
    """Flags of a rank's data: written in this collective, and read by other ranks.

    The flags are by rank and chunk for schedules in vector form. For others, and for too many
    chunks, they are by rank alone, and ``in`` is never written.
    """

    def __init__(self, schedule: Schedule) -> None:
        n, nchunks = schedule.nranks, max(1, schedule.nchunks)
        self._vector = schedule.vector
        self._each = schedule.vector and n * nchunks <= _MOST_CHUNKS
        shape = (n, nchunks if self._each else 1)
        self._written, self._sent = np.zeros(shape, bool), np.zeros(shape, bool)
        for step in schedule.steps:
            m = step.moves().remote()
            again = m.where(self.fresh(m))
            self._mark(self._sent, again, again.src, 3)
            self.note(m)
        self._written = np.zeros(shape, bool)

    def _mark(self, table: Flags, m: Moves, rank: NDArray[np.int32], row: int) -> None:
        if self._each:
            unit = m.unit()
            table[np.repeat(rank, m.count), unit.table[row]] = True
        else:
            table[rank, 0] = True

    def fresh(self, m: Moves) -> Flags:
        """True for moves that read a chunk which was written earlier in this collective.

        Such a chunk is in the cache of the core that wrote it. Of a move's chunks the first counts.
        """
        if self._each:
            return np.asarray(self._written[m.src, m.src_chunk])
        known = self._written[m.src, 0]
        return np.asarray(known if self._vector else known & (m.src_buffer != Buffer.IN))

    def shared(self, m: Moves) -> Flags:
        """True for moves whose first written chunk is read by other ranks afterwards.

        Since collectives are repeated, the chunk must be taken from their caches before it is
        written. Out of place, data that a rank sends before writing it lies and stays in ``in``.
        """
        if self._each:
            return np.asarray(self._sent[m.dst, m.dst_chunk])
        return np.asarray(self._sent[m.dst, 0])

    def note(self, m: Moves) -> None:
        """Record the writes of a completed step."""
        self._mark(self._written, m, m.dst, 5)
