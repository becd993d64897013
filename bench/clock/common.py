"""The common clock of a world: rank 0's clock, by a linear model for each host.

The algorithm is HCA3 (Hunold and Carpen-Amarie, "Hierarchical Clock Synchronization in MPI",
CLUSTER 2018). In each round every host that knows the common time synchronises one that does not,
so P hosts take log2 P rounds, and each fits its model directly against the common clock. The ranks
of a host share CLOCK_MONOTONIC, and so they share the model of the first of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.clock.model import ClockModel, Trip, best, fitted
from bench.clock.reading import Clock
from collectives.execution.world import Json, World

Floats = NDArray[np.float64]
#: A fit's samples: number of bursts, trips in each, and seconds between them.
BURSTS, TRIPS, PAUSE_S = 16, 24, 0.03
# Old trips are forgotten, for a rate does change over an hour.
_KEPT = 256


class Meeting(NamedTuple):
    """A round of the tree for one rank: whom it asks, or whom it answers."""

    asks: int | None = None
    answers: int | None = None


def rounds(leaders: Sequence[int], rank: int) -> Iterator[Meeting]:
    """What a rank does in each round; ``leaders``: the first rank of every host, rank 0 first."""
    known = 1
    mine = leaders.index(rank) if rank in leaders else None
    while known < len(leaders):
        if mine is not None and known <= mine < 2 * known:
            yield Meeting(asks=leaders[mine - known])
        elif mine is not None and mine < known and mine + known < len(leaders):
            yield Meeting(answers=leaders[mine + known])
        else:
            yield Meeting()
        known *= 2


def _ask(world: World, peer: int, read: Clock) -> Trip:
    """The best of a burst of questions to a rank that `_answer`s."""
    word, trips = np.zeros(1), list[Trip]()
    for _ in range(TRIPS):
        before = read()
        world.send(peer, word)
        world.receive(peer, word)
        after = read()
        middle = before + (after - before) / 2
        trips.append(Trip(middle, float(word[0]) - middle, after - before))
    return best(trips)


def _answer(world: World, peer: int, read: Clock) -> None:
    word = np.zeros(1)
    for _ in range(TRIPS):
        world.receive(peer, word)
        word[0] = read()
        world.send(peer, word)


class CommonClock:
    """What `synchronise` gives on every rank; it does not change what the rank's own clock shows.

    ``read``: the host's clock. ``exchanged``: whether there were several hosts; without there is
    one clock for all. ``refits``: how often the line was fitted again, on any host.
    """

    def __init__(
        self,
        world: World,
        read: Clock,
        hosts: Sequence[int],
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        """``hosts``: the host of each rank. All ranks make one together."""
        self.read, self.line, self.refits = read, ClockModel(), 0
        self._world, self._hosts, self._wait = world, list(hosts), wait
        self._leaders = [self._hosts.index(host) for host in dict.fromkeys(self._hosts)]
        self.exchanged = len(self._leaders) > 1
        self._trips: list[Trip] = []
        self.lines: list[ClockModel] = [self.line] * len(self._leaders)
        if self.exchanged:
            self._fit()

    def now(self) -> float:
        """The common time."""
        return self.line.other(self.read())

    def common(self, local: Floats) -> Floats:
        """The common times at which this rank's clock shows these."""
        one = self.line
        return local + one.offset + one.drift * (local - one.at)

    def local(self, common: Floats) -> Floats:
        """This rank's clock at common times."""
        one = self.line
        return one.at + (common - one.at - one.offset) / (1 + one.drift)

    def _fit(self) -> None:
        """Fit all lines anew. All ranks call this together."""
        for meeting in rounds(self._leaders, self._world.rank):
            self._trips = self._met(meeting, BURSTS, PAUSE_S) or self._trips
            if meeting.asks is not None:
                self.line = fitted(self._trips)
        self._tell()

    def _met(self, meeting: Meeting, bursts: int, pause: float) -> list[Trip]:
        """This rank's part in a round. Who has none sleeps, since waiting in MPI takes a core."""
        found = []
        for _ in range(bursts):
            if meeting.asks is not None:
                found.append(_ask(self._world, meeting.asks, self.read))
            elif meeting.answers is not None:
                _answer(self._world, meeting.answers, self.now)
            if pause:
                self._wait(pause)
        return found

    def _tell(self) -> None:
        """Every rank learns the line of its host."""
        everyone = self._world.gather(list(self.line))
        self.line = ClockModel(*everyone[self._hosts.index(self._hosts[self._world.rank])])
        self.lines = [ClockModel(*everyone[rank]) for rank in self._leaders]

    def check(self) -> None:
        """Ask once more; where an answer is farther off than its line allows, fit that again.

        With all trips so far, which makes the rate better known; where those do not lie on a line
        any more, with new ones only. All ranks call this together, outside every clock.
        """
        if not self.exchanged:
            return
        grown = again = False
        for meeting in rounds(self._leaders, self._world.rank):
            for trip in self._met(meeting, 1, 0.0):
                self._trips = [*self._trips[-_KEPT:], trip]
                if abs(self.line.off(trip)) > self.line.allowed(trip):
                    before, self.line, grown = self.line, fitted(self._trips), True
                    again = self.line.residual > 3 * max(before.residual, before.seconds / 20)
                    again |= abs(self.line.off(trip)) > self.line.allowed(trip)
        grown, again = (any(one) for one in zip(*self._world.gather([grown, again]), strict=True))
        self.refits += grown
        if again:
            self._fit()
        elif grown:
            self._tell()

    def said(self) -> str:
        """A line about the hosts' clocks, as they were last fitted."""
        others = self.lines[1:]

        def span(values: Sequence[float], unit: str) -> str:
            low, high = f"{min(values):+.6g}", f"{max(values):+.6g}"
            return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"

        again = f"; fitted again {self.refits} times" * bool(self.refits)
        return (
            f"clock: rank 0's; other hosts' differ by {span([o.offset for o in others], 's')} and"
            f" {span([o.drift * 1e6 for o in others], 'ppm')}; residual"
            f" {max(o.residual for o in others) * 1e6:.2g} us, round trip"
            f" {max(o.seconds for o in others) * 1e6:.3g} us" + again
        )

    def facts(self) -> dict[str, Json]:
        """The clock's entry in a record."""
        if not self.exchanged:
            return {"source": "CLOCK_MONOTONIC of the one host"}
        now = self.read()
        others = self.lines[1:]
        return {
            "source": "HCA3",
            "hosts": len(self.lines),
            "offset_s": [round(one.offset, 9) for one in others],
            "drift": [round(one.drift, 10) for one in others],
            "residual_s": [round(one.residual, 10) for one in others],
            "trip_s": [round(one.seconds, 9) for one in others],
            "error_s": round(self.line.error(now), 10),
            "refits": self.refits,
        }
