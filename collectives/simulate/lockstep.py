"""The step-by-step engine, for schedules in which no two steps share a link at one time.

The times of a step depend only on the differences between the times at which ranks enter it. So a
step that comes again with the same differences takes the same time. That fails if messages of
different steps are on one link at one time. The engine detects this and stops, with the last step
before which everything had ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.simulate.clocks import PARTS, Clocks, Problem, TimedStage
from collectives.simulate.fluid import EXACT, TooMuch, finishes

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]

_MOST_KEPT = 1 << 26  # bytes of clocks that are remembered


class Checkpoint(NamedTuple):
    """A step before which everything had ended, and the clocks there; no step: all is done."""

    step: int
    clocks: Clocks


class _Move(NamedTuple):
    """The effect of a step on clocks with the same differences.

    The earliest moves on by ``shift``, the differences become ``later``. A class's chain comes from
    class ``before`` and gains ``parts``. Links are busy from ``first`` to ``last``.
    """

    shift: float
    later: Amounts
    before: Numbers
    parts: Amounts
    first: Amounts
    last: Amounts


@dataclass
class _Lockstep:
    problem: Problem
    most: float

    def __post_init__(self) -> None:
        self.known: dict[tuple[int, bytes], _Move] = {}
        self.kept = 0
        self.together: dict[int, Amounts] = {}
        # A power of 2, so that sums of grains are exact and what comes again is equal to the bit.
        self.grain = 2.0 ** np.floor(np.log2(EXACT * self._shortest()))

    def _shortest(self) -> float:
        """The shortest time that is not 0, of a message or of a rank's own."""
        columns = [
            times
            for timed in self.problem.stages
            for times in (timed.wire + timed.stage.latency, timed.local, timed.post)
        ]
        shortest = (float(times[times > 0].min(initial=np.inf)) for times in columns)
        return min((time for time in shortest if time < np.inf), default=1.0)

    def grains(self, times: Amounts) -> Amounts:
        """Times in whole grains."""
        found: Amounts = np.rint(times / self.grain) * self.grain
        return found

    def move(self, number: int, later: Amounts) -> _Move:
        """The step of a stage from clocks that differ by ``later``."""
        key = (number, later.tobytes())
        found = self.known.get(key)
        if found is None:
            found = self._move(number, later)
            self.kept += 8 * len(later) * (3 + len(PARTS)) + 16 * len(self.problem.rate)
            if self.kept > _MOST_KEPT:
                self.known, self.kept = {}, 0
            self.known[key] = found
        return found

    def _move(self, number: int, later: Amounts) -> _Move:
        timed = self.problem.stages[number]
        stage = timed.stage
        posted = self.grains(later + timed.post)
        sender_last = posted[stage.src] >= posted[stage.dst]
        origin = np.where(sender_last, stage.src, stage.dst)
        begin = posted[origin] + stage.latency
        end = self.grains(self._ends(number, timed, begin))
        done, before, row = _arrivals(timed, posted, end)
        parts = np.zeros((len(later), len(PARTS)))
        parts[:, 0] = timed.post
        got = row >= 0
        r = row[got]
        before[got] = origin[r]
        parts[got, 0] = timed.post[origin[r]]
        parts[got, 1] = stage.latency[r]
        parts[got, 2] = timed.wire[r]
        parts[got, 3] = end[r] - begin[r] - timed.wire[r]
        parts[got, 4] = done[got] - end[r]
        # Rounding errors must not hide that two steps are equal.
        done = self.grains(done + timed.local)
        parts[:, 4] += timed.local
        first, last = self._busy(timed, begin, end)
        shift = float(done.min())
        return _Move(shift, done - shift, before, parts, first, last)

    def _ends(self, number: int, timed: TimedStage, begin: Amounts) -> Amounts:
        stage = timed.stage
        if stage.alone or not len(begin):
            return begin + timed.wire
        if (begin == begin[0]).all():
            if number not in self.together:
                self.together[number] = self._flow(timed, np.zeros_like(begin))
            return begin + self.together[number]
        start = float(begin.min())
        return self._flow(timed, begin - start) + start

    def _flow(self, timed: TimedStage, begin: Amounts) -> Amounts:
        rate = self.problem.rate
        found, work = finishes(begin, timed.sent(rate, 0.0), rate, self.most)
        self.most -= work
        return found

    def _busy(self, timed: TimedStage, begin: Amounts, end: Amounts) -> tuple[Amounts, Amounts]:
        nlinks = len(self.problem.rate)
        first, last = np.full(nlinks + 1, np.inf), np.full(nlinks + 1, -np.inf)
        links = timed.stage.links
        if links.shape[1]:
            np.minimum.at(first, links.ravel(), np.repeat(begin, links.shape[1]))
            np.maximum.at(last, links.ravel(), np.repeat(end, links.shape[1]))
        return first[:-1], last[:-1]


def _arrivals(timed: TimedStage, posted: Amounts, end: Amounts) -> tuple[Amounts, Numbers, Numbers]:
    """By class: when all messages are added, the chain's class, and the row it waited for.

    Additions of a rank follow one another in the order in which messages arrive. Row −1: none.
    """
    done, before = posted.copy(), np.arange(len(posted))
    row = np.full(len(posted), -1)
    rank, rows, adds = timed.ends
    if not len(rank):
        return done, before, row
    ready = end[rows]
    if timed.adds.any():
        order = np.lexsort((ready, rank))
        rows, adds, ready = rows[order], adds[order], ready[order]
        # From a message's arrival on, it and all later ones are still to be added.
        ahead = np.cumsum(adds)
        last = np.append(timed.starts[1:], len(rank)) - 1
        rest = np.repeat(ahead[last], np.diff(np.append(timed.starts, len(rank)))) - ahead + adds
        ready = ready + np.where(adds > 0, rest, 0.0)
    most = np.maximum.reduceat(ready, timed.starts)
    who = rank[timed.starts]
    # The first row of a class that it had to wait for.
    hit = ready == np.repeat(most, np.diff(np.append(timed.starts, len(rank))))
    place = np.where(hit, np.arange(len(rank)), len(rank))
    row[who] = rows[np.minimum.reduceat(place, timed.starts)]
    done[who] = most
    return done, before, row


def lockstep(problem: Problem, most: float = np.inf) -> Checkpoint:
    """Carry out as many steps as possible; ``most``: work in all, as for `finishes`."""
    engine = _Lockstep(problem, most)
    base, later = 0.0, np.zeros(problem.nranks)
    parts = Clocks.begin(problem.nranks).parts
    busy = np.full(len(problem.rate), -np.inf)
    latest = -np.inf
    cut = Checkpoint(0, Clocks.begin(problem.nranks))
    for number, stage in enumerate(problem.steps.tolist()):
        if len(busy) and base >= latest:
            cut = Checkpoint(number, Clocks(base + later, parts.copy()))
        try:
            move = engine.move(stage, later)
        except TooMuch:
            return cut
        if len(busy):
            early = move.first + base < busy - EXACT * np.abs(busy)
            if early.any():
                return cut
            busy = np.maximum(busy, move.last + base)
            latest = float(busy.max())
        parts = parts[move.before] + move.parts
        base += move.shift
        later = move.later
    return Checkpoint(len(problem.steps), Clocks(base + later, parts))
