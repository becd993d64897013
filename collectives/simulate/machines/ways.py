"""The links that messages take: as a table, or as stretches of the circles of a ring or torus.

Both answer the same questions. A stretch is told by where it begins and how long it is, so what is
asked of all links of a way is a difference of two sums from the beginning, however long the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from collectives.errors import Unsupported

__all__ = ["NO_LINK", "Circle", "Circles", "Ids", "Numbers", "Table", "Ways"]

Numbers = NDArray[np.int64]
Ids = NDArray[np.int32]
Hashes = NDArray[np.uint64]
Amounts = NDArray[np.float64]

NO_LINK = -1
_MOST_HOPS = 1 << 27  # 512 MiB of link numbers
_BLOCK = 1 << 16
# So many different rates or latencies are counted one by one; more are looked up link by link.
_FEW = 8


class Ways(Protocol):
    """The ways of messages over links that are numbered from 0 to ``nlinks``."""

    nlinks: int

    def __len__(self) -> int:
        """How many messages."""
        ...

    @property
    def work(self) -> int:
        """How many numbers a question about all of them looks at."""
        ...

    @property
    def cells(self) -> int:
        """How many numbers `table` gives for all of them, or more."""
        ...

    def table(self, rows: Numbers | slice = ...) -> Ids:
        """Link numbers in the order of the way, NO_LINK behind: shape (messages, most links).

        Raises Unsupported for more than memory should hold.
        """
        ...

    def total(self, values: Amounts) -> Amounts:
        """Of every message the sum of its links' values; equal for equal ways."""
        ...

    def hashes(self, values: Hashes) -> Hashes:
        """Of every message the sum of its links' values, modulo 2⁶⁴."""
        ...

    def least(self, values: Amounts) -> Amounts:
        """Of every message the least of its links' values; the greatest float where it has none."""
        ...

    def loads(self, weights: Amounts, part: slice = ...) -> Amounts:
        """Of every link the sum of its messages' weights, of 0 or more; ``part``: of these messages,
        whose weights alone are given."""
        ...

    def gather(self, values: Hashes) -> Hashes:
        """Of every link the sum of its messages' values, modulo 2⁶⁴."""
        ...

    def kept(self, number: Ids, nlinks: int) -> Ways:
        """With links by new numbers; those that have none (−1) are left out."""
        ...


def _blocks(size: int) -> list[slice]:
    return [slice(at, at + _BLOCK) for at in range(0, size, _BLOCK)]


def _together(links: Ids) -> Ids:
    """Links of a way moved together, in their order, and the columns that nobody needs left out."""
    width = int((links >= 0).sum(axis=1).max(initial=0))
    if width < links.shape[1]:
        order = np.argsort(links < 0, axis=1, kind="stable")[:, :width]
        links = np.take_along_axis(links, order, axis=1)
    return links


@dataclass(frozen=True)
class Table:
    """Ways as `Ways.table` gives them."""

    links: Ids
    nlinks: int

    def __len__(self) -> int:
        return len(self.links)

    @property
    def work(self) -> int:
        return self.links.size

    @property
    def cells(self) -> int:
        return self.links.size

    def table(self, rows: Numbers | slice = slice(None)) -> Ids:
        found: Ids = self.links[rows]
        return found

    def total(self, values: Amounts) -> Amounts:
        return self._each(np.append(values, 0.0), lambda found: found.sum(axis=1))

    def hashes(self, values: Hashes) -> Hashes:
        seen = np.append(values, np.uint64(0))
        found = np.empty(len(self), np.uint64)
        for block in _blocks(len(self)):
            found[block] = seen[self.links[block]].sum(axis=1, dtype=np.uint64)
        return found

    def least(self, values: Amounts) -> Amounts:
        most = np.finfo(float).max
        return self._each(np.append(values, most), lambda found: found.min(axis=1, initial=most))

    def _each(self, values: Amounts, of: Callable[[Amounts], Amounts]) -> Amounts:
        # NO_LINK is the last of the values.
        found = np.empty(len(self))
        for block in _blocks(len(self)):
            found[block] = of(values[self.links[block]])
        return found

    def loads(self, weights: Amounts, part: slice = slice(None)) -> Amounts:
        links, found = self.links[part], np.zeros(self.nlinks + 1)
        for block in _blocks(len(links)):
            index = links[block].ravel().astype(np.int64) + 1
            each = np.repeat(weights[block], links.shape[1])
            found += np.bincount(index, each, self.nlinks + 1)
        return found[1:]

    def gather(self, values: Hashes) -> Hashes:
        found = np.zeros(self.nlinks + 1, np.uint64)
        for block in _blocks(len(self)):
            part = self.links[block]
            np.add.at(found, part.ravel(), np.repeat(values[block], part.shape[1]))
        return found[:-1]

    def kept(self, number: Ids, nlinks: int) -> Table:
        number = np.append(number, np.int32(NO_LINK))
        parts = [_together(number[self.links[block]]) for block in _blocks(len(self))]
        width = max((part.shape[1] for part in parts), default=0)
        found = np.full((len(self), width), NO_LINK, np.int32)
        for block, part in zip(_blocks(len(self)), parts, strict=True):
            found[block, : part.shape[1]] = part
        return Table(found, nlinks)


class Circle(NamedTuple):
    """Stretches of circles of ``side`` links, one a message, of as many links as ``hops`` says.

    The links of a message's circle are numbered from ``zero`` on. The way takes link ``first`` of it
    first and goes upwards, or downwards for a negative number of hops.
    """

    side: int
    first: Ids
    hops: Ids
    zero: Ids

    def links(self, rows: Numbers | slice) -> Ids:
        """Link numbers in the order of the way, NO_LINK behind."""
        first, hops, zero = self.first[rows], self.hops[rows], self.zero[rows]
        longest = int(np.abs(hops).max(initial=0))
        found = np.full((len(first), longest), NO_LINK, np.int32)
        step = np.arange(longest, dtype=np.int32)
        for block in _blocks(len(first)):
            x = first[block, None] + np.sign(hops[block, None]) * step
            x += np.where(x < 0, self.side, 0).astype(np.int32)
            x -= np.where(x >= self.side, self.side, 0).astype(np.int32)
            left = np.abs(hops[block, None])
            np.copyto(found[block], x + zero[block, None], where=step < left)
        return found

    def ends(self, part: slice) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Two ranges of link numbers a message, [a, b) and, past the end of the circle, [c, d)."""
        hops, zero = self.hops[part].astype(np.int64), self.zero[part].astype(np.int64)
        low = self.first[part] + np.where(hops < 0, hops + 1, 0)
        low += np.where(low < 0, self.side, 0)
        high = low + np.abs(hops)
        return (
            zero + low,
            zero + np.minimum(high, self.side),
            zero,
            zero + np.maximum(high - self.side, 0),
        )


@dataclass(frozen=True)
class Circles:
    """Ways that are made of one stretch of a circle for every dimension.

    ``number``: by which number each link of the circles goes, −1 for none.
    """

    circles: tuple[Circle, ...]
    number: Ids
    nlinks: int
    messages: int

    def __len__(self) -> int:
        return self.messages

    @property
    def work(self) -> int:
        return 4 * self.messages * len(self.circles)

    @property
    def cells(self) -> int:
        return self.messages * self._longest(slice(None))

    def _longest(self, rows: Numbers | slice) -> int:
        return sum(int(np.abs(circle.hops[rows]).max(initial=0)) for circle in self.circles)

    def table(self, rows: Numbers | slice = slice(None)) -> Ids:
        messages = len(range(*rows.indices(len(self)))) if isinstance(rows, slice) else len(rows)
        hops = self._longest(rows)
        if messages * hops > _MOST_HOPS:
            raise Unsupported(
                f"{messages} messages of up to {hops} hops are too many at once; take fewer ranks,"
                " or a machine with shorter ways"
            )
        number = np.append(self.number, np.int32(NO_LINK))
        parts = [number[circle.links(rows)] for circle in self.circles]
        empty = np.empty((messages, 0), np.int32)
        return _together(np.concatenate([empty, *parts], axis=1))

    def hashes(self, values: Hashes) -> Hashes:
        return self._sums(values, np.zeros(len(self), np.uint64))

    def _sums(self, values: NDArray[np.generic], found: Hashes) -> Hashes:
        each = np.where(self.number >= 0, np.append(values, np.uint64(0))[self.number], np.uint64(0))
        upto = np.concatenate([np.zeros(1, np.uint64), np.cumsum(each, dtype=np.uint64)])
        for block in _blocks(len(self)):
            for circle in self.circles:
                a, b, c, d = circle.ends(block)
                found[block] += upto[b] - upto[a] + upto[d] - upto[c]
        return found

    def _counts(self, values: Amounts) -> list[tuple[float, Numbers]] | None:
        """The different values, descending, and how many links of each a way has; None for many."""
        different = np.unique(values)[::-1]
        if len(different) > _FEW:
            return None
        return [
            (float(value), self.hashes((values == value).astype(np.uint64)).astype(np.int64))
            for value in different
        ]

    def total(self, values: Amounts) -> Amounts:
        counts = self._counts(values)
        if counts is None:
            return Table(self.table(), self.nlinks).total(values)
        found = np.zeros(len(self))
        for value, count in counts:
            found += value * count
        return found

    def least(self, values: Amounts) -> Amounts:
        counts = self._counts(values)
        if counts is None:
            return Table(self.table(), self.nlinks).least(values)
        found = np.full(len(self), np.finfo(float).max)
        for value, count in counts:
            found[count > 0] = value
        return found

    def loads(self, weights: Amounts, part: slice = slice(None)) -> Amounts:
        # Whole numbers, so that what is taken away again leaves nothing: the sum is below 2⁶².
        scale = 61 - np.frexp(max(float(weights.sum()), np.finfo(float).tiny))[1]
        whole = np.rint(np.ldexp(weights, scale)).astype(np.int64)
        return np.ldexp(self._spread(whole.view(np.uint64), part).view(np.int64).astype(float), -scale)

    def gather(self, values: Hashes) -> Hashes:
        return self._spread(values, slice(None))

    def _spread(self, values: Hashes, part: slice) -> Hashes:
        found = np.zeros(len(self.number) + 1, np.uint64)
        for circle in self.circles:
            a, b, c, d = circle.ends(part)
            np.add.at(found, a, values)
            np.subtract.at(found, b, values)
            over = d > c
            np.add.at(found, c[over], values[over])
            np.subtract.at(found, d[over], values[over])
        each = np.cumsum(found, dtype=np.uint64)[:-1]
        has = self.number >= 0
        result = np.zeros(self.nlinks, np.uint64)
        result[self.number[has]] = each[has]
        return result

    def kept(self, number: Ids, nlinks: int) -> Circles:
        fresh = np.append(number, np.int32(NO_LINK))[self.number]
        return Circles(self.circles, fresh, nlinks, self.messages)
