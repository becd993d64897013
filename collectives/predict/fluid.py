"""Bytes that flow over shared links at max-min fair rates.

Rates are max-min fair if no message can get more without taking from another that has no more
already (Bertsekas, Gallager 1992, section 6.5). This module knows neither ranks nor steps.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import count

import numpy as np

from collectives.predict.machine import Amounts, Ids, Numbers

# Shares and times that differ by less are equal, up to rounding errors of a few additions.
EXACT = 1e-12
# A link is full if the demand exceeds its rate by this fraction. Demand is updated by adding and
# subtracting, so it may have more than one rounding error.
_FULL = 1e-10
# The search for messages that a change affects ends after so many rounds, and then all messages
# count as affected; it is skipped if they have more links than _WIDE.
_MOST_SCANS = 6
_WIDE = 1 << 18
_LEAST_ROWS = 256
# The fixed cost of recomputing rates, in links.
_CHANGE = 2_000


class TooMuch(Exception):
    """Raised when `compute_ends` exceeds its limit of work."""


def compute_fair_rates(links: Ids | Numbers, load: Amounts, cap: Amounts, rate: Amounts) -> Amounts:
    """Compute the max-min fair rate of every row, by progressive filling.

    Row i stands for messages that all get one rate of at most ``cap[i]``; ``load[i, j]`` of them
    cross each link ``links[i, j]``, padded with len(rate), which has no limit. All links that are
    the tightest links of all their messages are filled at once.
    """
    rates: Amounts = cap.copy()
    row, column = np.nonzero(links < len(rate))
    link, load = links[row, column], load[row, column]
    free = rate.copy()
    least = np.empty(len(rate))
    while len(row):
        # Entries are ordered by row; `first`: where each remaining row begins.
        first = np.flatnonzero(np.diff(row, prepend=-1))
        left = row[first]
        share = free[link] / np.bincount(link, load, len(rate))[link]
        tight = np.minimum.reduceat(share, first)
        alone = cap[left] <= tight
        rates[left] = np.minimum(tight, cap[left])
        wanted = rates[row]
        least[link] = np.inf
        np.minimum.at(least, link, wanted)
        done = np.logical_or.reduceat(share <= least[link] * (1 + EXACT), first) | alone
        if done.all():
            break
        ended = np.repeat(done, np.diff(first, append=len(row)))
        free -= np.bincount(link[ended], (load * wanted)[ended], len(rate))
        np.maximum(free, 0.0, out=free)
        rest = ~ended
        row, link, load = row[rest], link[rest], load[rest]
    return rates


@dataclass(frozen=True)
class Bytes:
    """Messages as columns: bytes, maximum rate, and route.

    ``links`` and ``load`` as for `compute_fair_rates`. ``slack``: by how many seconds rates may
    change earlier or later than the message begins or ends; see `Fluid`.
    """

    nbytes: Amounts
    cap: Amounts
    links: Ids
    load: Amounts
    slack: Amounts

    def at(self, rows: Numbers) -> Bytes:
        """Select rows."""
        return Bytes(*(getattr(self, column.name)[rows] for column in fields(self)))


class Fluid:
    """The state of all flows: messages with a start time ahead, and messages in flight.

    `add` messages. `settle` then computes the rates of messages in flight, and `next`, the time at
    which rates change again. `advance` goes to `next` and returns the messages that have ended.
    These two are repeated.

    An event is the begin or end of a message. Without slack, `next` is the time of the first event.
    With a slack (seconds for each message), several events change rates at once, which saves time:
    `next` is the earliest of all events' time + slack, and every event whose time − slack has come
    by then is handled. With a slack of 1 s, events at 10 s and 11.5 s are both handled at 11 s. The
    begin and end times of messages remain 10 s and 11.5 s.

    A message has a row until it has ended; then the row is used again. The remaining bytes of a
    message are stored for the time at which its rate last changed.
    """

    def __init__(self, rate: Amounts) -> None:
        self._rate, self._limit = rate, np.append(rate * (1 + _FULL), np.inf)
        self.now, self.next = 0.0, np.inf
        none = len(rate)
        self._wanted = np.zeros(none + 1)
        self._full, self._dirty = np.zeros(none + 1, bool), np.zeros(none + 1, bool)
        self._key: Numbers = np.zeros((2, 0), np.int64)
        # bytes left, since when, cap, rate, time of begin or end, slack
        self._state: Amounts = np.zeros((6, 0))
        self._waits = np.zeros(0, bool)
        # links of messages in flight, and of all messages
        self._links: Numbers = np.zeros((0, 0), np.int64)
        self._ways: Numbers = np.zeros((0, 0), np.int64)
        self._load: Amounts = np.zeros((0, 0))
        self._room: list[int] = []
        self._held = 0
        self.work = 0
        self._begun: Numbers = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self._held

    def add(self, key: Numbers, begin: Amounts, what: Bytes) -> None:
        """Add messages that begin at the times ``begin``; ``what``: bytes, rates and routes.

        ``key``: two numbers of the caller's choice for each message, shape (2, messages). `advance`
        returns them when the message has ended.
        """
        new, width = len(begin), what.links.shape[1]
        self._grow(new, width)
        rows = np.array(self._room[len(self._room) - new :], np.int64)
        del self._room[len(self._room) - new :]
        self._key[:, rows] = key
        self._state[:, rows] = (what.nbytes, begin, what.cap, what.cap, begin, what.slack)
        self._waits[rows] = True
        self._ways[rows, :width] = what.links
        self._ways[rows, width:] = len(self._rate)
        self._load[rows, :width] = what.load
        self._held += new

    def _grow(self, new: int, width: int) -> None:
        """Make room for ``new`` more rows, with ``width`` links each."""
        rows, wide = self._links.shape
        if len(self._room) < new:
            self._resize(np.arange(rows), max(new, rows // 2), max(0, width - wide))
        elif width > wide:
            self._resize(np.arange(rows), 0, width - wide)
        elif 4 * (self._held + new) < rows > _LEAST_ROWS:
            self._resize(np.flatnonzero(self._state[4] < np.inf), 2 * new, 0)

    def _resize(self, keep: Numbers, more: int, wider: int) -> None:
        """Copy these rows into arrays with more empty rows and columns of links."""
        size, none = len(keep), len(self._rate)
        margin = ((0, more), (0, wider))
        self._links = np.pad(self._links[keep], margin, constant_values=none)
        self._ways = np.pad(self._ways[keep], margin, constant_values=none)
        self._load = np.pad(self._load[keep], margin)
        self._key = np.pad(self._key[:, keep], ((0, 0), (0, more)))
        self._state = np.pad(self._state[:, keep], ((0, 0), (0, more)))
        self._state[4, size:] = np.inf
        self._waits = np.pad(self._waits[keep], (0, more))
        self._begun = np.flatnonzero(np.isin(keep, self._begun))
        self._room = np.flatnonzero(self._state[4] == np.inf).tolist()

    def settle(self) -> None:
        """Recompute the max-min fair rates that the last events change, and find `next`."""
        if self._dirty.any() or len(self._begun):
            self.work += self._links.size + _CHANGE
            reached = self._reached()
            new = np.zeros(len(self._links), bool)
            new[self._begun] = True
            links = self._links[reached]
            links = np.where(self._full[links], links, len(self._rate))
            left, since, cap, speed, *_ = self._state[:, reached]
            fresh = compute_fair_rates(links, self._load[reached], cap, self._rate)
            # A message that has begun since then has had its rate from its start on.
            fixed = np.where(new[reached], since, self.now)
            left = np.maximum(left - speed * (fixed - since), 0.0)
            self._state[0, reached], self._state[1, reached] = left, fixed
            self._state[3, reached], self._state[4, reached] = fresh, fixed + left / fresh
            self._begun = self._begun[:0]
        self.next = float((self._state[4] + self._state[5]).min(initial=np.inf))

    def _reached(self) -> Numbers:
        """Rows that a change can affect: new ones, those on dirty links, and their neighbours."""
        dirty, width = self._dirty, self._links.shape[1]
        hit = np.zeros(len(self._links), bool)
        hit[self._begun] = True
        flat, reached = self._links.ravel(), self._begun
        most = _MOST_SCANS if self._links.size < _WIDE else 0
        for turn in count():
            if not width:
                break
            if turn == most or 2 * int(np.count_nonzero(hit)) > self._held:
                # Recomputing an unchanged rate does no harm.
                hit = ~self._waits & (self._state[4] < np.inf)
                break
            links = self._links[reached].ravel()
            fresh = links[self._full[links] & ~dirty[links]]
            if not len(fresh) and reached is not self._begun:
                break
            dirty[fresh] = True
            on = np.flatnonzero(dirty[flat]) // width
            reached = on[~hit[on]]
            if not len(reached):
                break
            hit[reached] = True
        dirty[:] = False
        return np.flatnonzero(hit)

    def advance(self) -> tuple[Numbers, Amounts]:
        """Go to the time `next`. Returns the keys of messages that ended, and their end times."""
        self.now = max(self.now, self.next)
        due = np.flatnonzero(self._state[4] - self._state[5] <= self.now * (1 + EXACT))
        waits = self._waits[due]
        begun, ended = due[waits], due[~waits]
        when = np.where(self._state[5, ended] > 0, self._state[4, ended], self.now)
        if len(ended):
            self._change(self._links[ended], -self._state[2, ended, None] * self._load[ended])
            self._links[ended] = len(self._rate)
            self._load[ended] = 0.0
            self._state[4, ended], self._state[5, ended] = np.inf, 0.0
            self._room += ended.tolist()
            self._held -= len(ended)
        if len(begun):
            self._waits[begun] = False
            at = np.where(self._state[5, begun] > 0, self._state[4, begun], self.now)
            self._state[1, begun] = at
            self._links[begun] = self._ways[begun]
            self._change(self._links[begun], self._state[2, begun, None] * self._load[begun])
            self._begun = begun
        return self._key[:, ended], when

    def _change(self, links: Numbers, wanted: Amounts) -> None:
        """Change the demand on links, and mark those that are or were full as dirty."""
        links, before = links.ravel(), self._full[links].ravel()
        np.add.at(self._wanted, links, wanted.ravel())
        self._wanted[-1] = 0.0
        self._full[links] = self._wanted[links] > self._limit[links]
        self._dirty[links] |= before | self._full[links]


def compute_ends(
    begin: Amounts, what: Bytes, rate: Amounts, most: float = np.inf
) -> tuple[Amounts, int]:
    """The end times of messages with known start times; also returns the work in links.

    No other messages may share their links. Raises TooMuch for more work than ``most``.
    """
    ends = np.empty(len(begin))
    fluid = Fluid(rate)
    number = np.arange(len(begin))
    fluid.add(np.stack([number, number]), begin, what)
    while len(fluid):
        if fluid.work > most:
            raise TooMuch
        fluid.settle()
        ended, when = fluid.advance()
        ends[ended[0]] = when
    return ends, fluid.work
