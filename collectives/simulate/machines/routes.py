"""Routes of messages as a table of link numbers.

`collectives.simulate.machines.circles` answers the same questions without a table.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Ids = NDArray[np.int32]
Hashes = NDArray[np.uint64]
Amounts = NDArray[np.float64]

NO_LINK = -1
_BLOCK = 1 << 16


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


class RankRoutes:
    """The routes of messages over ``nlinks`` links; ``links`` as `table` gives them."""

    def __init__(self, links: Ids, nlinks: int) -> None:
        self._links, self.nlinks = links, nlinks

    def __len__(self) -> int:
        return len(self._links)

    @property
    def work(self) -> int:
        """Numbers that a question about all routes looks at."""
        return self._links.size

    @property
    def cells(self) -> int:
        """Numbers that `table` gives for all routes, or more."""
        return self._links.size

    def table(self, rows: Numbers | slice = slice(None)) -> Ids:
        """Link numbers in the order of the route, NO_LINK behind: shape (messages, most links).

        Raises Unsupported for more than memory should hold.
        """
        found: Ids = self._links[rows]
        return found

    def total(self, values: Amounts) -> Amounts:
        """The sum of the links' values for every message; equal for equal routes."""
        return self._each(np.append(values, 0.0), lambda found: found.sum(axis=1))

    def least(self, values: Amounts) -> Amounts:
        """The minimum of the links' values for every message; the greatest float without links."""
        most = np.finfo(float).max
        return self._each(np.append(values, most), lambda found: found.min(axis=1, initial=most))

    def _each(self, values: Amounts, of: Callable[[Amounts], Amounts]) -> Amounts:
        # NO_LINK is the last of the values.
        found = np.empty(len(self))
        for block in blocks(len(self)):
            found[block] = of(values[self.table(block)])
        return found

    def hashes(self, values: Hashes) -> Hashes:
        """The sum of the links' values for every message, modulo 2⁶⁴."""
        seen = np.append(values, np.uint64(0))
        found = np.empty(len(self), np.uint64)
        for block in blocks(len(self)):
            found[block] = seen[self._links[block]].sum(axis=1, dtype=np.uint64)
        return found

    def loads(self, weights: Amounts, part: slice = slice(None)) -> Amounts:
        """The sum of the messages' weights for every link.

        ``part``: of these messages, whose weights alone are given.
        """
        links, found = self._links[part], np.zeros(self.nlinks + 1)
        for block in blocks(len(links)):
            index = links[block].ravel().astype(np.int64) + 1
            each = np.repeat(weights[block], links.shape[1])
            found += np.bincount(index, each, self.nlinks + 1)
        return found[1:]

    def gather(self, values: Hashes) -> Hashes:
        """The sum of the messages' values for every link, modulo 2⁶⁴."""
        found = np.zeros(self.nlinks + 1, np.uint64)
        for block in blocks(len(self)):
            part = self._links[block]
            np.add.at(found, part.ravel(), np.repeat(values[block], part.shape[1]))
        return found[:-1]

    def kept(self, number: Ids, nlinks: int) -> RankRoutes:
        """The routes with links by new numbers; links that have none (−1) are left out."""
        number = np.append(number, np.int32(NO_LINK))
        parts = [together(number[self._links[block]]) for block in blocks(len(self))]
        width = max((part.shape[1] for part in parts), default=0)
        found = np.full((len(self), width), NO_LINK, np.int32)
        for block, part in zip(blocks(len(self)), parts, strict=True):
            found[block, : part.shape[1]] = part
        return RankRoutes(found, nlinks)
