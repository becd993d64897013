"""The moves of one step as columns: sender, receiver, slots, and whether data is added.

Independent of collectives, sizes and transports. A slot is ``(buffer, chunk, count)``; a move goes
from a slot of one rank to a slot of another (or of the same) rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Column = NDArray[np.int32]


class Buffer(IntEnum):
    """The buffers that every rank has."""

    IN = 0
    OUT = 1
    SCRATCH = 2


class Slot(NamedTuple):
    """``count`` chunks of a buffer, from ``chunk`` on."""

    buffer: Buffer
    chunk: int
    count: int = 1  # type: ignore[assignment]


class Move(NamedTuple):
    """Copy ``from_slot`` of rank ``src`` to ``to_slot`` of ``dst``; ``reduce``: add it there."""

    src: int
    dst: int
    from_slot: Slot
    to_slot: Slot
    reduce: bool = False


_COLUMNS = ("src", "dst", "src_buffer", "src_chunk", "dst_buffer", "dst_chunk", "count", "reduce")


class _Column:
    """A column of `Moves`, which is a row of its table."""

    def __init__(self, row: int) -> None:
        self._row = row

    def __get__(self, moves: Moves, owner: type[Moves]) -> Column:
        column: Column = moves.table[self._row]
        return column


@dataclass(frozen=True, eq=False)
class Moves:
    """The moves of a step; ``table`` is int32 of shape (8, moves), with one row per column name."""

    table: NDArray[np.int32]

    @classmethod
    def of(cls, items: Iterable[Move]) -> Moves:
        """Make columns from single moves, in their order."""
        rows = [
            (m.src, m.dst, *m.from_slot[:2], *m.to_slot[:2], m.from_slot.count, m.reduce)
            for m in items
        ]
        return cls(np.array(rows, np.int32).reshape(-1, len(_COLUMNS)).T)

    @classmethod
    def concat(cls, parts: Iterable[Moves]) -> Moves:
        """Concatenate several sets of moves."""
        tables = [part.table for part in parts]
        return cls(np.concatenate(tables, axis=1)) if tables else cls.of(())

    def __len__(self) -> int:
        return int(self.table.shape[1])

    def __iter__(self) -> Iterator[Move]:
        for src, dst, sb, sc, db, dc, count, reduce in self.table.T.tolist():
            yield Move(
                src, dst, Slot(Buffer(sb), sc, count), Slot(Buffer(db), dc, count), bool(reduce)
            )

    # Columns: ranks that send and receive, buffers and first chunks read and written, chunks moved.
    src, dst, src_buffer, src_chunk, dst_buffer, dst_chunk, count = map(_Column, range(7))

    @property
    def reduce(self) -> NDArray[np.bool_]:
        """True for moves that add the source to the destination."""
        flags: NDArray[np.bool_] = self.table[7] != 0
        return flags

    def replace(self, **columns: ArrayLike) -> Moves:
        """The same moves with some columns (by name) replaced."""
        table = self.table.copy()
        for name, value in columns.items():
            table[_COLUMNS.index(name)] = value
        return Moves(table)

    def where(self, mask: NDArray[np.bool_]) -> Moves:
        """The moves for which the mask is true, in order."""
        return Moves(self.table[:, mask])

    def touching(self, rank: int) -> Moves:
        """The moves that a rank sends or receives."""
        return self.where((self.src == rank) | (self.dst == rank))

    def pairs(self, nranks: int) -> NDArray[np.int64]:
        """The number of each move's pair of ranks: sender x ``nranks`` + receiver."""
        return self.src.astype(np.int64) * nranks + self.dst

    def remote(self) -> Moves:
        """The moves between different ranks."""
        return self.where(self.src != self.dst)

    def unit(self) -> Moves:
        """The same transfers chunk by chunk (every count 1), in order."""
        if len(self) == 0 or int(self.count.max()) == 1:
            return self
        index = np.repeat(np.arange(len(self)), self.count)
        offset = np.arange(len(index)) - np.repeat(np.cumsum(self.count) - self.count, self.count)
        table = self.table[:, index]
        table[3] += offset.astype(np.int32)
        table[5] += offset.astype(np.int32)
        table[6] = 1
        return Moves(table)

    def joined(self) -> Moves:
        """The same transfers with adjacent slots of a pair of ranks joined, pair by pair.

        A pair's moves keep their order, so both ends join them alike, whatever else they see.
        """
        if len(self) < 2:
            return self
        table = self.table[:, np.lexsort((self.dst, self.src))]
        left, right = table[:, :-1], table[:, 1:]
        same = (left[[0, 1, 2, 4, 7]] == right[[0, 1, 2, 4, 7]]).all(axis=0)
        same &= (left[[3, 5]] + left[6] == right[[3, 5]]).all(axis=0)
        first = np.flatnonzero(np.concatenate([[True], ~same]))
        counts = np.add.reduceat(table[6], first)
        return Moves(table[:, first]).replace(count=counts)


def moves(
    src: ArrayLike,
    dst: ArrayLike,
    chunk: ArrayLike,
    *,
    to: ArrayLike | None = None,
    count: ArrayLike = 1,
    reduce: ArrayLike = False,
    src_buffer: ArrayLike = Buffer.OUT,
    dst_buffer: ArrayLike = Buffer.OUT,
) -> Moves:
    """Make columns from arrays and scalars, which are broadcast against each other.

    ``to``: the chunk written, by default the chunk read. The buffers default to the vector of the
    vector form (see `collectives.schedule.schedule`).
    """
    columns = (src, dst, src_buffer, chunk, dst_buffer, chunk if to is None else to, count, reduce)
    arrays = np.broadcast_arrays(*(np.asarray(column, np.int32) for column in columns))
    return Moves(np.stack([array.ravel() for array in arrays]))
