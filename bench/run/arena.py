"""The buffers of the current row; buffers of earlier rows are freed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from collectives.execution.transport import Array, Transport
from collectives.schedule.layout import Elements, Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.spec import Collective

Sizes = Mapping[Buffer, tuple[int, ...]]
"""Bytes of each buffer, a number a rank; in place there is one buffer, ``out``."""

# Vectors that MPI libraries take for themselves on every rank (docs/measuring.md), where not 1.
_VECTORS = {"reduce": 2, "reduce_scatter": 2}
# For smaller vectors, a library's memory is dominated by its first messages.
_TELLING = 16 << 20


def buffers(
    spec: Collective, nranks: int, root: int, elements: Elements, itemsize: int, in_place: bool
) -> Sizes:
    """The bytes that all ranks need for ``in`` and ``out``, computed without communication."""
    layout = Layout(spec, nranks, spec.parts(nranks), root)
    own = {
        buffer: tuple(layout.elements(r, buffer, elements) * itemsize for r in range(nranks))
        for buffer in (Buffer.IN, Buffer.OUT)
    }
    return {Buffer.OUT: tuple(map(max, *own.values()))} if in_place else own


def beside(spec: Collective, sizes: Sizes, rank: int, vectors: float = 0.0) -> int:
    """Bytes that a library's collective takes on a rank beside its buffers.

    ``vectors``: as many as it has been seen to take, where that is more than is known of others.
    """
    return int(max(_VECTORS.get(spec.name, 1), vectors) * _vector(sizes, rank))


def taken(sizes: Sizes, rank: int, nbytes: int) -> float:
    """Vectors that a library has taken of so many bytes; nothing where that cannot be told."""
    vector = _vector(sizes, rank)
    return nbytes / vector if vector >= _TELLING else 0.0


def _vector(sizes: Sizes, rank: int) -> int:
    return max(own[rank] for own in sizes.values())


class Arena:
    """Buffers for one row after the other; every method is called by all ranks alike.

    A buffer is kept for the next row when that takes just as much on every rank, and is given back
    before memory is looked at for any other: a row neither pays for what came before it nor finds
    its pages elsewhere because of it.
    """

    def __init__(self, transport: Transport, rank: int) -> None:
        self._transport, self._rank = transport, rank
        self._sizes: dict[Buffer, tuple[int, ...]] = {}
        self._held: dict[Buffer, Array] = {}

    def keep(self, sizes: Sizes) -> int:
        """Give back what is not of these sizes; gives the bytes that this rank still holds."""
        for buffer, held in list(self._sizes.items()):
            if sizes.get(buffer) != held:
                del self._sizes[buffer], self._held[buffer]
        return sum(own[self._rank] for own in self._sizes.values())

    def take(self, sizes: Sizes) -> None:
        """Take what is missing. Raises Unavailable where there is none."""
        for buffer, own in sizes.items():
            if buffer not in self._held:
                self._held[buffer] = self._transport.allocate(own[self._rank])
                self._sizes[buffer] = own

    def __getitem__(self, buffer: Buffer) -> Array:
        """A buffer's bytes on this rank."""
        return self._held[buffer]


def in_place_starts(layout: Layout, rank: int, elements: Elements) -> tuple[int, int]:
    """Where ``in`` and ``out`` start in the memory that they share."""
    mine = layout.parts(rank, Buffer.IN).tolist()
    want = layout.parts(rank, Buffer.OUT).tolist()
    if not mine or not want:
        return 0, 0
    each = int(np.asarray(elements).flat[0])  # parts of unequal sizes are never in place
    if len(mine) <= len(want):
        return want.index(mine[0]) * each, 0
    return 0, mine.index(want[0]) * each
