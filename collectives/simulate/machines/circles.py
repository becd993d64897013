"""Routes on rings and tori: stretches of circles of links.

A stretch is given by its beginning and its length. So a sum over all links of a route is the
difference of two prefix sums, however long the route is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unsupported
from collectives.simulate.machines.routes import (
    NO_LINK,
    Ids,
    Numbers,
    RankRoutes,
    blocks,
    together,
)

Hashes = NDArray[np.uint64]
Amounts = NDArray[np.float64]

_MOST_HOPS = 1 << 27  # 512 MiB of link numbers
# So many different rates or latencies are counted one by one; more are looked up link by link.
_FEW = 8


class Circle(NamedTuple):
    """Stretches of circles of ``side`` links, one a message, of as many links as ``hops`` says.

    The links of a message's circle are numbered from ``zero`` on. The route takes link ``first`` of
    it first and goes upwards, or downwards for a negative number of hops.
    """

    side: int
    first: Ids
    hops: Ids
    zero: Ids

    def links(self, rows: Numbers | slice) -> Ids:
        """Link numbers in the order of the route, NO_LINK behind."""
        first, hops, zero = self.first[rows], self.hops[rows], self.zero[rows]
        longest = int(np.abs(hops).max(initial=0))
        found = np.full((len(first), longest), NO_LINK, np.int32)
        step = np.arange(longest, dtype=np.int32)
        for block in blocks(len(first)):
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


class Circles(RankRoutes):
    """Routes that are made of one stretch of a circle for every dimension.

    ``number``: by which number each link of the circles goes, −1 for none.
    """

    def __init__(
        self, circles: tuple[Circle, ...], number: Ids, nlinks: int, messages: int
    ) -> None:
        self.circles, self.number = circles, number
        self.nlinks, self.messages = nlinks, messages

    def __len__(self) -> int:
        return self.messages

    @property
    def work(self) -> int:
        """See `RankRoutes`."""
        return 4 * self.messages * len(self.circles)

    @property
    def cells(self) -> int:
        """See `RankRoutes`."""
        return self.messages * self._longest(slice(None))

    def _longest(self, rows: Numbers | slice) -> int:
        return sum(int(np.abs(circle.hops[rows]).max(initial=0)) for circle in self.circles)

    def table(self, rows: Numbers | slice = slice(None)) -> Ids:
        """See `RankRoutes`."""
        messages = len(range(*rows.indices(len(self)))) if isinstance(rows, slice) else len(rows)
        hops = self._longest(rows)
        if messages * hops > _MOST_HOPS:
            raise Unsupported(
                f"{messages} messages of up to {hops} hops are too many at once; take fewer ranks,"
                " or a machine with shorter routes"
            )
        number = np.append(self.number, np.int32(NO_LINK))
        parts = [number[circle.links(rows)] for circle in self.circles]
        empty = np.empty((messages, 0), np.int32)
        return together(np.concatenate([empty, *parts], axis=1))

    def hashes(self, values: Hashes) -> Hashes:
        """See `RankRoutes`."""
        found = np.zeros(len(self), np.uint64)
        each = np.where(
            self.number >= 0, np.append(values, np.uint64(0))[self.number], np.uint64(0)
        )
        upto = np.concatenate([np.zeros(1, np.uint64), np.cumsum(each, dtype=np.uint64)])
        for block in blocks(len(self)):
            for circle in self.circles:
                a, b, c, d = circle.ends(block)
                found[block] += upto[b] - upto[a] + upto[d] - upto[c]
        return found

    def _counts(self, values: Amounts) -> list[tuple[float, Numbers]] | None:
        """The different values, descending, with each route's links of each; None if many."""
        different = np.unique(values)[::-1]
        if len(different) > _FEW:
            return None
        return [
            (float(value), self.hashes((values == value).astype(np.uint64)).astype(np.int64))
            for value in different
        ]

    def total(self, values: Amounts) -> Amounts:
        """See `RankRoutes`."""
        counts = self._counts(values)
        if counts is None:
            return super().total(values)
        found = np.zeros(len(self))
        for value, count in counts:
            found += value * count
        return found

    def least(self, values: Amounts) -> Amounts:
        """See `RankRoutes`."""
        counts = self._counts(values)
        if counts is None:
            return super().least(values)
        found = np.full(len(self), np.finfo(float).max)
        for value, count in counts:
            found[count > 0] = value
        return found

    def loads(self, weights: Amounts, part: slice = slice(None)) -> Amounts:
        """See `RankRoutes`."""
        # Whole numbers, so that what is taken away again leaves nothing: the sum is below 2⁶².
        scale = 61 - np.frexp(max(float(weights.sum()), np.finfo(float).tiny))[1]
        whole = np.rint(np.ldexp(weights, scale)).astype(np.int64)
        sums = self._spread(whole.view(np.uint64), part).view(np.int64)
        found: Amounts = np.ldexp(sums.astype(float), -scale)
        return found

    def gather(self, values: Hashes) -> Hashes:
        """See `RankRoutes`."""
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
        """See `RankRoutes`."""
        fresh = np.append(number, np.int32(NO_LINK))[self.number]
        return Circles(self.circles, fresh, nlinks, self.messages)
