"""Bytes that flow over shared links at max-min fair rates.

A set of rates is max-min fair when no message can have more without another having less that has no
more already (Bertsekas, Gallager 1992, section 6.5). Knows neither ranks nor steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Fluid", "fair", "finishes"]

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]

# Shares and times that differ by less are equal: what a few additions of floats may be off.
EXACT = 1e-12


def fair(links: Numbers, load: Amounts, cap: Amounts, rate: Amounts) -> Amounts:
    """The max-min fair rate of every row, by progressive filling.

    Row i stands for messages that all get one rate of at most ``cap[i]``; ``load[i, j]`` of them
    cross each link ``links[i, j]``, padded with len(rate), which has no limit. All links that are
    the tightest of all their messages are filled at once.
    """
    found: Amounts = cap.copy()
    free = np.append(rate, np.inf)
    left, most = np.arange(len(cap)), cap
    # A row a link of the way: NumPy is quick along the other axis.
    ways, loads = np.ascontiguousarray(links.T), np.ascontiguousarray(load.T)
    while len(left) and len(ways):
        wanted = np.bincount(ways.ravel(), loads.ravel(), len(free))
        share = np.full(len(free), np.inf)
        np.divide(free, wanted, out=share, where=wanted > 0)
        share[-1] = np.inf
        link = share[ways].min(axis=0)
        tight = np.minimum(link, most)
        least = np.full(len(free), np.inf)
        np.minimum.at(least, ways.ravel(), np.tile(tight, len(ways)))
        full = share <= least * (1 + EXACT)
        full[-1] = False
        done = full[ways].any(axis=0) | (most <= link)
        found[left[done]] = tight[done]
        rest = ~done
        left, most = left[rest], most[rest]
        if not len(left):
            break
        used = loads[:, done] * tight[done]
        free -= np.bincount(ways[:, done].ravel(), used.ravel(), len(free))
        np.maximum(free, 0.0, out=free)
        ways, loads = np.ascontiguousarray(ways[:, rest]), np.ascontiguousarray(loads[:, rest])
    return found


class Fluid:
    """Messages in flight. Add some, `settle`, `advance` to `next`, and so on.

    A message has a row while it flows; rows of ended ones are taken again. What is left of a message
    is known for when its speed last changed.
    """

    def __init__(self, rate: Amounts) -> None:
        self._rate = rate
        self.now = 0.0
        self._dirty = np.zeros(len(rate) + 1, bool)
        self._key: Numbers = np.zeros((2, 0), np.int64)
        # left, since, cap, speed, end
        self._state: Amounts = np.zeros((5, 0))
        self._links: Numbers = np.zeros((0, 0), np.int64)
        self._load: Amounts = np.zeros((0, 0))
        self._room: list[int] = []
        self._flowing = 0
        self.next = np.inf

    def __len__(self) -> int:
        return self._flowing

    def add(
        self, key: Numbers, nbytes: Amounts, cap: Amounts, links: Numbers, load: Amounts
    ) -> None:
        """Messages that begin now; ``key``: two numbers each, shape (2, messages)."""
        new, width = len(nbytes), links.shape[1]
        self._grow(new, width)
        rows = np.array(self._room[len(self._room) - new :], np.int64)
        del self._room[len(self._room) - new :]
        self._key[:, rows] = key
        self._state[:, rows] = (nbytes, np.full(new, self.now), cap, cap, self.now + nbytes / cap)
        if width:
            self._links[rows, :width] = links
            self._load[rows, :width] = load
            self._dirty[links.ravel()] = True
        self._flowing += new

    def _grow(self, new: int, width: int) -> None:
        """Make room for so many more rows, with so many links each."""
        rows, wide = self._links.shape
        more = max(new, rows) if len(self._room) < new else 0
        if more or width > wide:
            margin = ((0, more), (0, max(0, width - wide)))
            self._links = np.pad(self._links, margin, constant_values=len(self._rate))
            self._load = np.pad(self._load, margin)
            self._key = np.pad(self._key, ((0, 0), (0, more)))
            self._state = np.pad(self._state, ((0, 0), (0, more)), constant_values=np.inf)
            self._room += range(rows, rows + more)

    def settle(self) -> None:
        """Give everyone whom a change reaches the rate that is fair now."""
        dirty = self._dirty
        dirty[-1] = False
        if dirty.any():
            reached = self._reached(dirty)
            left, since, cap, speed, _ = self._state[:, reached]
            fresh = fair(self._links[reached], self._load[reached], cap, self._rate)
            left = np.maximum(left - speed * (self.now - since), 0.0)
            self._state[0, reached], self._state[1, reached] = left, self.now
            self._state[3, reached], self._state[4, reached] = fresh, self.now + left / fresh
            dirty[:] = False
        self.next = float(self._state[4].min(initial=np.inf))

    def _reached(self, dirty: NDArray[np.bool_]) -> Numbers:
        """Rows on a dirty link, and on a link with such a row, and so on."""
        flat, width = self._links.ravel(), self._links.shape[1]
        hit = np.zeros(len(self._links), bool)
        known = -1
        while True:
            hit[np.flatnonzero(dirty[flat]) // width] = True
            size = int(np.count_nonzero(hit))
            if size in (known, self._flowing):
                break
            known = size
            dirty[self._links[hit].ravel()] = True
            dirty[-1] = False
        return np.flatnonzero(hit)

    def advance(self, now: float) -> Numbers:
        """Let time pass until ``now``, at most `next`; gives the keys of those that have ended."""
        self.now = now
        rows = np.flatnonzero(self._state[4] <= now * (1 + EXACT))
        if len(rows):
            self._dirty[self._links[rows].ravel()] = True
            self._links[rows] = len(self._rate)
            self._load[rows] = 0.0
            self._state[4, rows] = np.inf
            self._room += rows.tolist()
            self._flowing -= len(rows)
        return self._key[:, rows]


def finishes(
    begin: Amounts, nbytes: Amounts, cap: Amounts, links: Numbers, load: Amounts, rate: Amounts
) -> Amounts:
    """When messages end that begin at known times and meet no others."""
    found = np.empty(len(begin))
    fluid = Fluid(rate)
    order = np.argsort(begin, kind="stable")
    ordered, at = begin[order], 0
    while at < len(order) or len(fluid):
        starts = ordered[at] if at < len(order) else np.inf
        now = min(starts, fluid.next)
        ended = fluid.advance(now)[0]
        found[ended] = now
        until = int(np.searchsorted(ordered, now, side="right"))
        if until > at:
            new = order[at:until]
            fluid.add(np.stack([new, new]), nbytes[new], cap[new], links[new], load[new])
            at = until
        fluid.settle()
    return found
