"""A linear model of one clock by another, fitted to exchanges. Pure.

The model is linear (Jones and Koenig 2012; Hunold and Carpen-Amarie, CLUSTER 2018). Over minutes
the rate of a quartz changes too little to matter. Where it does change, the residual grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import median
from typing import NamedTuple

# A burst whose best trip took longer than this many times the usual one was delayed in one
# direction, and it is unknown in which.
_HELD_UP = 1.5


class Trip(NamedTuple):
    """A question and its answer: the asker's middle of it, how much later the other's clock was.

    ``seconds``: from question to answer. The offset is off by half of that at most.
    """

    middle: float
    offset: float
    seconds: float


class ClockModel(NamedTuple):
    """The other clock at the local time t is t + offset + drift (t - at).

    ``residual``: how far trips are from it, root mean square. ``spread``: root of the summed
    squares of their times about ``at``, ``trips``: how many there were, ``seconds``: what a trip
    usually takes.
    """

    at: float = 0.0
    offset: float = 0.0
    drift: float = 0.0
    residual: float = 0.0
    spread: float = 0.0
    trips: int = 0
    seconds: float = 0.0

    def other(self, local: float) -> float:
        """The time on the other clock."""
        return local + self.offset + self.drift * (local - self.at)

    def off(self, trip: Trip) -> float:
        """How much later than the line says the other clock was."""
        return trip.offset - (self.other(trip.middle) - trip.middle)

    def error(self, local: float) -> float:
        """The standard error of the line at a time, by the scatter of its trips."""
        if self.trips < 3 or not self.spread:
            return self.residual
        return self.residual * sqrt(1 / self.trips + ((local - self.at) / self.spread) ** 2)

    def allowed(self, trip: Trip) -> float:
        """How far off a trip may be before the line is doubted: its scatter, and the trip's own."""
        late = max(0.0, trip.seconds - self.seconds) / 2
        return 4 * self.residual + late


def best(trips: Sequence[Trip]) -> Trip:
    """The shortest trip of a burst, which was not delayed."""
    return min(trips, key=lambda trip: trip.seconds)


def fitted(bursts: Sequence[Trip]) -> ClockModel:
    """The line of least squares through the best trips of bursts, two at the least.

    At least half of them are used: those that took the least time.
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
