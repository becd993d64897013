"""Check that a row's interval contains the true median after the row ended itself, in simulation.

Series of iterations with a known median go through `bench.timing.measure` with its budget, on a
clock that they advance. So the check covers the rule that ends rows, not an interval of a chosen
length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp
from statistics import NormalDist, median

import numpy as np
from numpy.typing import NDArray

from bench.timing.measure import Timing, measure
from bench.timing.starts import BarrierStart
from bench.trials.checks import CheckLine, most_by_chance
from busbar.statistics import interval
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.transport import Counted, Spans, Start

Floats = NDArray[np.float64]
Random = np.random.Generator

#: Seconds of an iteration.
USUAL_S = 1e-3
#: The share of rows whose interval must contain the true median.
HELD = 0.93
# Seconds that a neighbour's burst lasts, and seconds between bursts.
_ON_S, _OFF_S = 0.05, 0.2
_NOISE = 0.02


class IndependentSeries:
    """Iterations of one row, in seconds: independent and lognormal.

    ``noise``: the standard deviation of the logarithm.
    """

    def __init__(self, random: Random, usual: float = USUAL_S, noise: float = 0.1) -> None:
        self._random, self._usual, self._noise = random, usual, noise

    def take(self, n: int) -> Floats:
        """The next n times."""
        return np.asarray(self._usual * np.exp(self._noise * self._logs(n)))

    def true_median(self) -> float:
        """The median of the stationary distribution."""
        return self._usual

    def _logs(self, n: int) -> Floats:
        """Standard normal deviates."""
        return self._random.standard_normal(n)


class Autoregression(IndependentSeries):
    """Iterations whose logarithms are a first-order autoregression with the correlation ``r``."""

    def __init__(self, random: Random, usual: float = USUAL_S, r: float = 0.9) -> None:
        super().__init__(random, usual, 0.03)
        self._r, self._last = r, float(random.standard_normal())

    def _logs(self, n: int) -> Floats:
        logs: Floats = np.sqrt(1 - self._r**2) * self._random.standard_normal(n)
        for i in range(n):
            self._last = logs[i] = self._r * self._last + logs[i]
        return logs


class TwoLevels(IndependentSeries):
    """Two levels 15 % apart with 1 % of noise; ``stay``: for each, the probability to stay on it.

    With (0.95, 0.9) a third of the iterations are on the upper level.
    """

    def __init__(
        self, random: Random, usual: float = USUAL_S, stay: tuple[float, float] = (0.95, 0.95)
    ) -> None:
        super().__init__(random, usual, 0.01)
        self._stay, self._above = stay, (1 - stay[0]) / (2 - sum(stay))
        self._level = int(random.random() < self._above)

    def take(self, n: int) -> Floats:
        """See `IndependentSeries.take`."""
        levels = np.empty(n)
        for i, draw in enumerate(self._random.random(n)):
            levels[i] = self._level
            self._level ^= int(draw > self._stay[self._level])
        return np.asarray(super().take(n) * (1 + 0.15 * levels))

    def true_median(self) -> float:
        """The median of the mixture of both levels; halfway between them if shares are equal."""
        low = NormalDist(0, self._noise)
        high = NormalDist(float(np.log(1.15)), self._noise)
        ends = [low.mean - 9 * self._noise, high.mean + 9 * self._noise]
        for _ in range(60):
            middle = sum(ends) / 2
            share = (1 - self._above) * low.cdf(middle) + self._above * high.cdf(middle)
            ends[share > 0.5] = middle
        return self._usual * exp(ends[0])


class Drift(IndependentSeries):
    """A level that rises by 5 % per second."""

    def __init__(self, random: Random, usual: float = USUAL_S) -> None:
        super().__init__(random, usual, _NOISE)
        self._seconds = 0.0

    def take(self, n: int) -> Floats:
        """See `IndependentSeries.take`."""
        at = self._seconds + self._usual * np.arange(n)
        times = super().take(n) * np.exp(0.05 * at)
        self._seconds += float(times.sum())
        return np.asarray(times)

    def true_median(self) -> float:
        """The level at the middle of the row's time so far, which counts as a drift's median."""
        return self._usual * exp(0.05 * self._seconds / 2)


class Bursts(IndependentSeries):
    """A neighbour is active for 50 ms, then idle for 200; meanwhile iterations take 30 % longer."""

    def __init__(self, random: Random, usual: float = USUAL_S) -> None:
        super().__init__(random, usual, _NOISE)
        self._now = float(random.random()) * (_ON_S + _OFF_S)

    def take(self, n: int) -> Floats:
        """See `IndependentSeries.take`."""
        times = super().take(n)
        for i in range(n):
            times[i] *= 1.3 if self._now % (_ON_S + _OFF_S) >= _OFF_S else 1.0
            self._now += times[i]
        return times

    def true_median(self) -> float:
        """The median over many bursts and pauses."""
        return _of_bursts(self._usual)


@cache
def _of_bursts(usual: float) -> float:
    return float(median(Bursts(np.random.default_rng(0), usual).take(100_000).tolist()))


#: For each name, the class or function that makes a row's series.
PROCESSES: dict[str, Callable[[Random], IndependentSeries]] = {
    "independent": IndependentSeries,
    "autoregression 0.9": Autoregression,
    "autoregression 0.98": lambda random: Autoregression(random, r=0.98),
    "two levels 0.95": TwoLevels,
    "two levels 0.95, 0.9": lambda random: TwoLevels(random, stay=(0.95, 0.9)),
    "drift": Drift,
    "bursts": Bursts,
}


class _Passing(Counted):
    """An action that advances a clock by the times of a series."""

    def __init__(self, series: IndependentSeries) -> None:
        super().__init__(0, 0)
        self._series, self.now = series, 0.0

    def __call__(self) -> None:
        """Advance the clock by one iteration."""
        self.now += float(self._series.take(1)[0])

    def spans(self, n: int, start: Start) -> Spans:
        """Advance the clock by n iterations, each with its own time."""
        times = self._series.take(n)
        self.now += float(times.sum())
        return Spans(np.zeros(n), times, absolute=False)

    def close(self) -> None:
        """Do nothing; no resources are held."""


@dataclass(frozen=True)
class EndedRow:
    """A row after its end. ``held``: its interval contains the true median; None without interval.

    ``iterations``: including those that were left out. ``seconds``: total time, including warm-up.
    """

    stopped: str
    held: bool | None
    iterations: int
    seconds: float


def ended_rows(
    process: Callable[[Random], IndependentSeries], rows: int, rules: Timing | None = None
) -> list[EndedRow]:
    """``rows`` rows of a process, each with its own seed, measured like rows without ``-n``."""
    rules = rules or Timing(settle=True)
    return run(
        1, lambda world: [_ended(process, n, world, rules) for n in range(rows)], deadline=3600
    )[0]


def _ended(
    process: Callable[[Random], IndependentSeries], seed: int, world: InprocWorld, rules: Timing
) -> EndedRow:
    series = process(np.random.default_rng([1, seed]))
    plan = _Passing(series)
    timed = measure(plan, world, rules, BarrierStart(world, clock=lambda: plan.now))
    ends, true = interval(timed.times_s), series.true_median()
    held = None if ends is None else ends[0] <= true <= ends[1]
    return EndedRow(timed.stopped, held, len(timed.times_s) + len(timed.warm_up_s), plan.now)


def stopping_line(name: str, rows: Sequence[EndedRow]) -> CheckLine:
    """The check of one kind of series: in how many rows the interval holds the true median."""
    total, missed = len(rows), sum(row.held is False for row in rows)
    precise = [row for row in rows if row.stopped == "precise"]
    most = most_by_chance(total, 1 - HELD)
    wrong = sum(row.held is False for row in precise)
    text = (
        f"{100 * (1 - missed / total):.1f} % of {total} intervals hold the true median;"
        f" {len(precise)} rows end as precise, {wrong} of them wrongly; median of"
        f" {median(row.iterations for row in rows):.0f} iterations"
    )
    target = f"{100 * HELD:.0f} %, and by chance {most} of {total} may be missed"
    return CheckLine(f"rows that end themselves, {name}", text, target, missed <= most)


def stopping_lines(rows: int) -> Iterator[CheckLine]:
    """A line of the self-check for each kind of series."""
    for name, process in PROCESSES.items():
        yield stopping_line(name, ended_rows(process, rows))
