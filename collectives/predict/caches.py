"""The cache that holds each chunk, as far as the schedule's reads and writes determine it.

Among ranks that share memory, data that another core has just written must be fetched from it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collectives.schedule.moves import Buffer, Moves
from collectives.schedule.schedule import Schedule

Flags = NDArray[np.bool_]
# More ranks x chunks than this are not kept one by one.
_MOST_CHUNKS = 1 << 22


class Caches:
    """Flags of a rank's data: written in this collective, and read by other ranks.

    By rank and chunk for schedules in vector form; for others, and where that would be too much to
    keep, by rank alone, with ``in`` never written.
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
        """Flags of the moves whose first chunk was written before it is read."""
        if self._each:
            return np.asarray(self._written[m.src, m.src_chunk])
        known = self._written[m.src, 0]
        return np.asarray(known if self._vector else known & (m.src_buffer != Buffer.IN))

    def shared(self, m: Moves) -> Flags:
        """Flags of the moves whose first written chunk is read by other ranks afterwards.

        Since collectives are repeated, it must be taken from their caches before it can be written.
        Out of place: what a rank sends before it has written it lies in ``in``, and stays there.
        """
        if self._each:
            return np.asarray(self._sent[m.dst, m.dst_chunk])
        return np.asarray(self._sent[m.dst, 0])

    def note(self, m: Moves) -> None:
        """Record the writes of a completed step."""
        self._mark(self._written, m, m.dst, 5)
