"""Routes of messages: the interface, and its implementation by a table of link numbers.

`collectives.simulate.machines.circles` implements it without a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Ids = NDArray[np.int32]
Hashes = NDArray[np.uint64]
Amounts = NDArray[np.float64]

NO_LINK = -1
_BLOCK = 1 << 16


class RankRoutes(Protocol):
    """The routes of messages over links that are numbered from 0 to ``nlinks``."""

    @property
    def nlinks(self) -> int:
        """How many links there are."""
        ...

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
        """Link numbers in the order of the route, NO_LINK behind: shape (messages, most links).

        Raises Unsupported for more than memory should hold.
        """
        ...

    def total(self, values: Amounts) -> Amounts:
        """For every message the sum of its links' values; equal for equal routes."""
        ...

    def hashes(self, values: Hashes) -> Hashes:
        """For every message the sum of its links' values, modulo 2⁶⁴."""
        ...

    def least(self, values: Amounts) -> Amounts:
        """For every message the minimum of its links' values; the greatest float if it has none."""
        ...

    def loads(self, weights: Amounts, part: slice = ...) -> Amounts:
        """For every link the sum of its messages' weights.

        ``part``: of these messages, whose weights alone are given.
        """
        ...

    def gather(self, values: Hashes) -> Hashes:
        """For every link the sum of its messages' values, modulo 2⁶⁴."""
        ...

    def kept(self, number: Ids, nlinks: int) -> RankRoutes:
        """With links by new numbers; those that have none (−1) are left out."""
        ...


def blocks(size: int) -> list[slice]:
    """Messages in parts that a cache holds."""
    return [slice(at, at + _BLOCK) for at in range(0, size, _BLOCK)]


def together(links: Ids) -> Ids:
    """Close the gaps between a route's links, in their order, and drop the unused columns."""
    width = int((links >= 0).sum(axis=1).max(initial=0))
    if width < links.shape[1]:
        order = np.argsort(links < 0, axis=1, kind="stable")[:, :width]
        links = np.take_along_axis(links, order, axis=1)
    return links


@dataclass(frozen=True)
class RoutingTable:
    """Routes as `RankRoutes.table` gives them."""

    links: Ids
    nlinks: int

    def __len__(self) -> int:
        return len(self.links)

    @property
    def work(self) -> int:
        """See `RankRoutes`."""
        return self.links.size

    @property
    def cells(self) -> int:
        """See `RankRoutes`."""
        return self.links.size

    def table(self, rows: Numbers | slice = slice(None)) -> Ids:
        """See `RankRoutes`."""
        found: Ids = self.links[rows]
        return found

    def total(self, values: Amounts) -> Amounts:
        """See `RankRoutes`."""
        return self._each(np.append(values, 0.0), lambda found: found.sum(axis=1))

    def hashes(self, values: Hashes) -> Hashes:
        """See `RankRoutes`."""
        seen = np.append(values, np.uint64(0))
        found = np.empty(len(self), np.uint64)
        for block in blocks(len(self)):
            found[block] = seen[self.links[block]].sum(axis=1, dtype=np.uint64)
        return found

    def least(self, values: Amounts) -> Amounts:
        """See `RankRoutes`."""
        most = np.finfo(float).max
        return self._each(np.append(values, most), lambda found: found.min(axis=1, initial=most))

    def _each(self, values: Amounts, of: Callable[[Amounts], Amounts]) -> Amounts:
        # NO_LINK is the last of the values.
        found = np.empty(len(self))
        for block in blocks(len(self)):
            found[block] = of(values[self.links[block]])
        return found

    def loads(self, weights: Amounts, part: slice = slice(None)) -> Amounts:
        """See `RankRoutes`."""
        links, found = self.links[part], np.zeros(self.nlinks + 1)
        for block in blocks(len(links)):
            index = links[block].ravel().astype(np.int64) + 1
            each = np.repeat(weights[block], links.shape[1])
            found += np.bincount(index, each, self.nlinks + 1)
        return found[1:]

    def gather(self, values: Hashes) -> Hashes:
        """See `RankRoutes`."""
        found = np.zeros(self.nlinks + 1, np.uint64)
        for block in blocks(len(self)):
            part = self.links[block]
            np.add.at(found, part.ravel(), np.repeat(values[block], part.shape[1]))
        return found[:-1]

    def kept(self, number: Ids, nlinks: int) -> RoutingTable:
        """See `RankRoutes`."""
        number = np.append(number, np.int32(NO_LINK))
        parts = [together(number[self.links[block]]) for block in blocks(len(self))]
        width = max((part.shape[1] for part in parts), default=0)
        found = np.full((len(self), width), NO_LINK, np.int32)
        for block, part in zip(blocks(len(self)), parts, strict=True):
            found[block, : part.shape[1]] = part
        return RoutingTable(found, nlinks)
