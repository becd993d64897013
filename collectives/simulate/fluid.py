"""Bytes that flow over shared links at max-min fair rates.

A set of rates is max-min fair when no message can have more without another having less that has no
more already (Bertsekas, Gallager 1992, section 6.5). Knows neither ranks nor steps.
"""

from __future__ import annotations

from typing import Any

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
    left = np.arange(len(cap))
    while len(left) and links.shape[1]:
        ways, loads, most = links[left], load[left], cap[left]
        wanted = np.bincount(ways.ravel(), loads.ravel(), len(free))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(wanted > 0, free / wanted, np.inf)
        share[-1] = np.inf
        link = share[ways].min(axis=1)
        tight = np.minimum(link, most)
        least = np.full(len(free), np.inf)
        np.minimum.at(least, ways.ravel(), np.repeat(tight, ways.shape[1]))
        full = share <= least * (1 + EXACT)
        full[-1] = False
        done = full[ways].any(axis=1) | (most <= link)
        found[left[done]] = tight[done]
        used = loads[done] * tight[done][:, None]
        free -= np.bincount(ways[done].ravel(), used.ravel(), len(free))
        np.maximum(free, 0.0, out=free)
        left = left[~done]
    return found


class Fluid:
    """Messages in flight. Add some, `settle`, `advance` to `next`, and so on."""

    def __init__(self, rate: Amounts) -> None:
        self._rate = rate
        self.now = 0.0
        self._key: Numbers = np.empty((2, 0), np.int64)
        self._left: Amounts = np.empty(0)
        self._size: Amounts = np.empty(0)
        self._cap: Amounts = np.empty(0)
        self._speed: Amounts = np.empty(0)
        self._links: Numbers = np.empty((0, 0), np.int64)
        self._load: Amounts = np.empty((0, 0))
        self._dirty = np.zeros(len(rate) + 1, bool)
        self._ends = np.empty(0)

    def __len__(self) -> int:
        return len(self._left)

    def add(
        self, key: Numbers, nbytes: Amounts, cap: Amounts, links: Numbers, load: Amounts
    ) -> None:
        """Messages that begin now; ``key``: two numbers each, shape (2, messages)."""
        self._key = np.concatenate([self._key, key], axis=1)
        self._left = np.concatenate([self._left, nbytes])
        self._size = np.concatenate([self._size, nbytes])
        self._cap = np.concatenate([self._cap, cap])
        self._speed = np.concatenate([self._speed, cap])
        width = max(self._links.shape[1], links.shape[1])
        self._links = np.concatenate([self._wide(part, width) for part in (self._links, links)])
        self._load = np.concatenate([_padded(part, width, 0.0) for part in (self._load, load)])
        self._dirty[links.ravel()] = True

    def _wide(self, links: Numbers, width: int) -> Numbers:
        return _padded(links, width, len(self._rate))

    def settle(self) -> None:
        """Give everyone whom a change reaches the rate that is fair now."""
        dirty = self._dirty
        dirty[-1] = False
        if dirty.any() and self._links.shape[1]:
            known = -1
            hit = dirty[self._links].any(axis=1)
            # Whoever shares a link with somebody reached is reached.
            while (size := int(np.count_nonzero(hit))) != known:
                known = size
                dirty[self._links[hit]] = True
                dirty[-1] = False
                hit = dirty[self._links].any(axis=1)
            self._speed[hit] = fair(self._links[hit], self._load[hit], self._cap[hit], self._rate)
        dirty[:] = False
        self._ends = self.now + self._left / self._speed

    @property
    def next(self) -> float:
        """When the next message ends; infinity where there is none."""
        return float(self._ends.min(initial=np.inf))

    def advance(self, now: float) -> Numbers:
        """Let time pass until ``now``, at most `next`; gives the keys of those that have ended."""
        self._left = self._left - self._speed * (now - self.now)
        self.now = now
        done = self._left <= np.maximum(self._size * EXACT, self._speed * (now * EXACT))
        ended = self._key[:, done]
        if ended.shape[1]:
            self._dirty[self._links[done].ravel()] = True
            stay = ~done
            self._key = self._key[:, stay]
            self._left, self._size = self._left[stay], self._size[stay]
            self._cap, self._speed = self._cap[stay], self._speed[stay]
            self._links, self._load = self._links[stay], self._load[stay]
        return ended


def _padded(table: NDArray[Any], width: int, value: float) -> NDArray[Any]:
    lacking = width - table.shape[1]
    if not lacking:
        return table
    return np.pad(table, ((0, 0), (0, lacking)), constant_values=value)


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
