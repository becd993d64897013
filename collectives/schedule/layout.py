"""The positions of chunks: the vector chunk that each slot stands for, and its elements.

A layout connects a schedule's chunk numbers, a collective's parts and a run's element counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from busbar.errors import ScheduleError
from collectives.schedule.moves import Buffer, Moves
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective

Elements = int | NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """A collective on ``nranks`` ranks whose vector is cut into ``nchunks`` chunks.

    ``scratch(rank)``: the vector chunks that a rank's scratch slots stand for. Raises ScheduleError
    if chunks are not whole divisions of the collective's parts.
    """

    spec: Collective
    nranks: int
    nchunks: int
    root: int = 0
    scratch: Callable[[int], NDArray[np.int64]] | None = None

    def __post_init__(self) -> None:
        parts = self.spec.parts(self.nranks)
        if (self.nchunks < parts or self.nchunks % parts) if parts else self.nchunks:
            raise ScheduleError(
                f"{self.spec.name}: {self.nchunks} chunks do not fall on {parts} parts"
            )

    @classmethod
    def of(cls, schedule: Schedule, spec: Collective, root: int = 0) -> Layout:
        """The layout that a schedule for a collective works on."""
        return cls(spec, schedule.nranks, schedule.nchunks, root, schedule.scratch_chunks)

    @cached_property
    def split(self) -> int:
        """Chunks per part."""
        return self.nchunks // max(1, self.spec.parts(self.nranks))

    def _held(self, rank: int, buffer: Buffer) -> Sequence[int]:
        of = self.spec.inputs if buffer is Buffer.IN else self.spec.outputs
        return of(self.nranks, rank, self.root)

    def parts(self, rank: int, buffer: Buffer) -> NDArray[np.int64]:
        """The parts that ``in`` or ``out`` of a rank holds, in the buffer's order."""
        return np.fromiter(self._held(rank, buffer), np.int64)

    def chunks(self, rank: int, buffer: Buffer) -> NDArray[np.int64]:
        """The vector chunks that a buffer's slots stand for, in the buffer's order."""
        if buffer is Buffer.SCRATCH:
            return np.empty(0, np.int64) if self.scratch is None else self.scratch(rank)
        parts = self.parts(rank, buffer)
        return (parts[:, None] * self.split + np.arange(self.split)).ravel()

    def shared(self, rank: int) -> dict[int, int]:
        """In place: the slots of a rank's ``in`` that are also slots of its ``out``, and which."""
        out = {c: i for i, c in enumerate(self.chunks(rank, Buffer.OUT).tolist())}
        chunks = self.chunks(rank, Buffer.IN).tolist()
        return {i: out[c] for i, c in enumerate(chunks) if c in out}

    def bounds(self, rank: int, buffer: Buffer, elements: Elements) -> NDArray[np.int64]:
        """Element offsets of a buffer's slots (one more than there are slots).

        ``elements`` is the number of elements of every part, or an array with one number per part.
        A part's elements are divided among its chunks as equally as whole elements allow.
        """
        part, piece = np.divmod(self.chunks(rank, buffer), max(1, self.split))
        share = np.broadcast_to(np.asarray(elements, np.int64), self.spec.parts(self.nranks))[part]
        sizes = (piece + 1) * share // self.split - piece * share // self.split
        return np.concatenate([[0], np.cumsum(sizes)])

    def elements(self, rank: int, buffer: Buffer, elements: Elements) -> int:
        """Elements in a rank's buffer, from the elements of the parts."""
        if np.ndim(elements) == 0 and buffer is not Buffer.SCRATCH:
            return int(elements) * len(self._held(rank, buffer))
        return int(self.bounds(rank, buffer, elements)[-1])


def carried_elements(layout: Layout, elements: Elements) -> Callable[[Moves], NDArray[np.int64]]:
    """A function that returns the elements of each move of a step; ``elements`` as in `bounds`."""
    bounds = [layout.bounds(r, b, elements) for b in Buffer for r in range(layout.nranks)]
    # The elements before every slot and before each buffer's end, and the index of each slot 0.
    before, sizes = np.concatenate(bounds), np.array([len(each) for each in bounds])
    first = (np.cumsum(sizes) - sizes).reshape(len(Buffer), layout.nranks)

    def carried(m: Moves) -> NDArray[np.int64]:
        at = first[m.src_buffer, m.src] + m.src_chunk
        return np.asarray(before[at + m.count] - before[at])

    return carried


class Slots:
    """Numbers for the slots of all ranks, so that moves can be looked up as columns.

    Shapes: ``size[buffer, rank]``; ``first[buffer, rank]`` is the number of slot 0;
    ``stands[number]`` is the vector chunk that a slot stands for.
    """

    def __init__(self, layout: Layout) -> None:
        ranks = range(layout.nranks)
        chunks = [layout.chunks(rank, buffer) for buffer in Buffer for rank in ranks]
        sizes = np.array([len(held) for held in chunks], np.int64)
        self.size = sizes.reshape(len(Buffer), layout.nranks)
        self.first = (np.cumsum(sizes) - sizes).reshape(self.size.shape)
        self.stands = np.concatenate([np.empty(0, np.int32), *chunks]).astype(np.int32, copy=False)

    def __len__(self) -> int:
        return len(self.stands)

    def of(self, buffer: Buffer) -> slice:
        """The numbers of all ranks' slots of one buffer, in the order of ranks."""
        first = int(self.first[buffer].min(initial=len(self)))
        return slice(first, first + int(self.size[buffer].sum()))

    def read(self, m: Moves) -> NDArray[np.int64]:
        """The slots that unit moves read."""
        return np.asarray(self.first[m.src_buffer, m.src] + m.src_chunk)

    def written(self, m: Moves) -> NDArray[np.int64]:
        """The slots that unit moves write."""
        return np.asarray(self.first[m.dst_buffer, m.dst] + m.dst_chunk)
