"""A common clock for all ranks: rank 0's clock, which each host knows by a linear model.

The algorithm is HCA3 (Hunold and Carpen-Amarie, "Hierarchical Clock Synchronization in MPI",
CLUSTER 2018). In each round every host that knows the common time synchronises one that does not,
so P hosts need log2 P rounds, and each host fits its model directly against the common clock. The
ranks of a host share CLOCK_MONOTONIC, and so they share the model of the first of them. The model
is linear (Jones and Koenig 2012): over minutes the rate of a quartz changes too little to matter.
If the rate does change, the residual grows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unsupported
from collectives.execution.world import Json, World

Clock = Callable[[], float]
"""Returns seconds since an arbitrary moment."""

#: The environment variable with the clock errors that `bench.cluster` emulates, such as
#: ``host1:2.5:-80:7000 …``: host, seconds ahead, parts in a million fast, since which true time.
VARIABLE = "BUSBAR_HOST_CLOCKS"
_NUMBER = r"([-+]?[0-9.]{1,20})"
_ONE = re.compile(f"([A-Za-z0-9._-]{{1,64}}):{_NUMBER}:{_NUMBER}:{_NUMBER}")
# A burst whose best trip took longer than this many times the usual one was delayed in one
# direction, and it is unknown in which.
_HELD_UP = 1.5
Floats = NDArray[np.float64]
Times = TypeVar("Times", float, Floats)
#: A fit's samples: number of bursts, trips in each, and seconds between them.
BURSTS, TRIPS, PAUSE_S = 16, 24, 0.03
# Only the last trips are kept, because a clock's rate changes over an hour.
_KEPT = 256


class Skew(NamedTuple):
    """Error of a host's clock: ``offset`` seconds ahead at the true time ``since``, and its drift.

    ``drift``: seconds gained per second.
    """

    offset: float = 0.0
    drift: float = 0.0
    since: float = 0.0

    def of(self, true: float) -> float:
        """The time that the host's clock shows at a true time."""
        return true + self.offset + self.drift * (true - self.since)

    def clock(self, true: Clock = time.perf_counter) -> Clock:
        """The host's clock as a function; ``true``: the true clock."""
        return true if self == Skew() else lambda: self.of(true())


def skew(env: Mapping[str, str], host: str) -> Skew | None:
    """This host's emulated clock error from the environment; None if clocks are not emulated.

    Raises Unsupported if the variable has another form.
    """
    text = env.get(VARIABLE)
    if text is None:
        return None
    skews: dict[str, Skew] = {}
    for word in text.split():
        one = _ONE.fullmatch(word)
        try:
            assert one is not None
            skews[one[1]] = Skew(float(one[2]), float(one[3]) * 1e-6, float(one[4]))
        except (AssertionError, ValueError):
            raise Unsupported(
                f"{VARIABLE}: {word[:40]!r} is no HOST:SECONDS:PPM:SINCE of bench.cluster --clocks"
            ) from None
    return skews.get(host, Skew())


class Trip(NamedTuple):
    """A round trip: the local time at its middle, and the other clock's offset from that time.

    ``seconds``: duration of the round trip. The offset's error is at most half of it.
    """

    middle: float
    offset: float
    seconds: float


class ClockModel(NamedTuple):
    """A linear model: at local time t the other clock shows t + offset + drift (t - at).

    ``residual``: root mean square distance of the trips from the line. ``spread``: root of the
    summed squares of their times relative to ``at``. ``trips``: their number. ``seconds``: the
    usual duration of a trip.
    """

    at: float = 0.0
    offset: float = 0.0
    drift: float = 0.0
    residual: float = 0.0
    spread: float = 0.0
    trips: int = 0
    seconds: float = 0.0

    def other(self, local: Times) -> Times:
        """The time on the other clock at a local time, or the times at several."""
        return local + self.offset + self.drift * (local - self.at)

    def off(self, trip: Trip) -> float:
        """How far a trip's offset is from that of the line, in seconds."""
        return trip.offset - (self.other(trip.middle) - trip.middle)

    def error(self, local: float) -> float:
        """The standard error of the line at a local time, from the scatter of its trips."""
        if self.trips < 3 or not self.spread:
            return self.residual
        return self.residual * sqrt(1 / self.trips + ((local - self.at) / self.spread) ** 2)

    def allowed(self, trip: Trip) -> float:
        """The largest distance of a trip consistent with the line: scatter plus its delay."""
        late = max(0.0, trip.seconds - self.seconds) / 2
        return 4 * self.residual + late


def fitted(bursts: Sequence[Trip]) -> ClockModel:
    """Fit the least-squares line through the best trips of two or more bursts.

    Trips that took much longer than the median are left out, so at least half are used.
    """
    usual = median(trip.seconds for trip in bursts)
    used = [trip for trip in bursts if trip.seconds <= _HELD_UP * usual]
    n = len(used)
    at = sum(trip.middle for trip in used) / n
    mean = sum(trip.offset for trip in used) / n
    squares = sum((trip.middle - at) ** 2 for trip in used)
    products = sum((trip.middle - at) * (trip.offset - mean) for trip in used)
    drift = products / squares if squares else 0.0
    left = sum((trip.offset - mean - drift * (trip.middle - at)) ** 2 for trip in used)
    return ClockModel(at, mean, drift, sqrt(left / max(1, n - 2)), sqrt(squares), n, usual)


class Meeting(NamedTuple):
    """A rank's part in a round of the tree: the rank that it asks, or the rank that it answers."""

    asks: int | None = None
    answers: int | None = None


def rounds(leaders: Sequence[int], rank: int) -> Iterator[Meeting]:
    """A rank's part in each round; ``leaders``: the first rank of every host, rank 0 first."""
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
    """The shortest trip, of smallest error, of a burst of messages to a rank in `_answer`."""
    word, trips = np.zeros(1), list[Trip]()
    for _ in range(TRIPS):
        before = read()
        world.send(peer, word)
        world.receive(peer, word)
        after = read()
        middle = before + (after - before) / 2
        trips.append(Trip(middle, float(word[0]) - middle, after - before))
    return min(trips, key=lambda trip: trip.seconds)


def _answer(world: World, peer: int, read: Clock) -> None:
    word = np.zeros(1)
    for _ in range(TRIPS):
        world.receive(peer, word)
        word[0] = read()
        world.send(peer, word)


class CommonClock:
    """Rank 0's clock on any rank; the rank's own clock is not changed.

    ``read``: the host's clock. ``exchanged``: True for several hosts; a single host needs no model.
    ``refits``: how often lines were fitted again, on any host.
    """

    def __init__(self, world: World, read: Clock, hosts: Sequence[int]) -> None:
        """``hosts``: the host of each rank. All ranks create their clock together."""
        self.read, self.line, self.refits = read, ClockModel(), 0
        self._world, self._hosts = world, list(hosts)
        self._leaders = [self._hosts.index(host) for host in dict.fromkeys(self._hosts)]
        self.exchanged = len(self._leaders) > 1
        self._trips: list[Trip] = []
        self.lines: list[ClockModel] = [self.line] * len(self._leaders)
        if self.exchanged:
            self._fit()

    def now(self) -> float:
        """The present common time."""
        return self.line.other(self.read())

    def local(self, common: Floats) -> Floats:
        """Convert common times to times of this rank's clock."""
        one = self.line
        return one.at + (common - one.at - one.offset) / (1 + one.drift)

    def _fit(self) -> None:
        """Fit all lines again. All ranks call this together."""
        for meeting in rounds(self._leaders, self._world.rank):
            self._trips = self._exchange_bursts(meeting, BURSTS, PAUSE_S) or self._trips
            if meeting.asks is not None:
                self.line = fitted(self._trips)
        self._exchange_lines()

    def _exchange_bursts(self, meeting: Meeting, bursts: int, pause: float) -> list[Trip]:
        """Do this rank's part in a round. Other ranks sleep, as waiting in MPI uses a core."""
        trips = []
        for _ in range(bursts):
            if meeting.asks is not None:
                trips.append(_ask(self._world, meeting.asks, self.read))
            elif meeting.answers is not None:
                _answer(self._world, meeting.answers, self.now)
            if pause:
                time.sleep(pause)
        return trips

    def _exchange_lines(self) -> None:
        """Exchange the lines, so that every rank has the line of its host."""
        everyone = self._world.gather(list(self.line))
        self.line = ClockModel(*everyone[self._hosts.index(self._hosts[self._world.rank])])
        self.lines = [ClockModel(*everyone[rank]) for rank in self._leaders]

    def check(self) -> None:
        """Measure one burst; refit a line if the trip is farther from it than `ClockModel.allowed`.

        All trips so far are used, which improves the rate; if they no longer lie on a line, only
        new ones. All ranks call this together, outside of timed sections.
        """
        if not self.exchanged:
            return
        grown = again = False
        for meeting in rounds(self._leaders, self._world.rank):
            for trip in self._exchange_bursts(meeting, 1, 0.0):
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
            self._exchange_lines()

    def describe(self) -> str:
        """A line of text about the hosts' clocks."""
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
