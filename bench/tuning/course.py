"""Progress of a tuning run: its time limit, the time it has used, and its messages."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from bench.launch.launch import OnLine, parse_progress, show_progress
from bench.options.options import parse
from bench.run.contenders import RankSetup, jobs
from bench.run.memory import pools
from bench.run.pace import limits
from bench.run.work import rows
from bench.tuning.launches import Launch
from busbar.errors import Unsupported
from busbar.units import format_duration

#: The shares of the time limit for rows and for all runs. The rest is for starting and deciding.
_ROWS, _RUNS = 0.9, 0.95
# The least time of a row and, without a budget, the most, which is a run's default.
_LEAST_S, _MOST_S = 0.01, 2.0
# The time a row should have before another round is added, and its additional time: memory, plan,
# proof, trial of stores.
_ENOUGH_S, _SETUP_S = 0.1, 0.3
# Seconds between progress messages if there is no progress bar.
_EVERY_S = 10.0


class Effort(NamedTuple):
    """The cost of a run: number of rows, and an upper bound of seconds."""

    rows: int
    seconds: float


def effort(launch: Launch) -> Effort:
    """Estimate the cost of a run before it starts, without allocating. Raises Unsupported."""
    options = parse(launch.argv, launch.collective)
    try:
        todo = jobs([options], RankSetup(launch.ranks, options.transport))
    except Unsupported:  # an algorithm does not support so many ranks; the run will report it
        return Effort(0, 0.0)
    times = max(1, options.cycles)
    each = limits(todo, launch.ranks, [pools()] * launch.ranks)
    sizes = sum(
        len(one.chosen) * sum(1 for _ in rows(one.spec, one.options, launch.ranks)) for one in todo
    )
    return Effort(sizes * len(options.placements) * times, sum(each) * times)


class Course:
    """The progress and time limit of a tuning run.

    ``runs``: the efforts of all runs, in order. ``minutes``: the limit for all of them, or None.
    """

    def __init__(
        self,
        runs: Sequence[Effort],
        minutes: float | None,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs, self._say, self._clock = list(runs), say, clock
        self._start, self._told = clock(), clock()
        self._whole = None if minutes is None else 60 * minutes
        self._number, self._begun, self._taken = 0, 0.0, 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    def announce(self) -> None:
        """Print the amount of work, and how long it takes."""
        many = len(self._runs)
        what = f"{many} run{'s' * (many != 1)} of {sum(run.rows for run in self._runs)} rows in all"
        if self._whole is None:
            most = format_duration(sum(run.seconds for run in self._runs))
            self._say(f"{what}, {most} at most; --budget MINUTES for less")
        else:
            each = self.row_seconds() or 0.0
            self._say(f"{what} within {format_duration(self._whole)}, {each:.2g} s a row")
            if each < _ENOUGH_S:
                need = format_duration((_ENOUGH_S + _SETUP_S) * self._ahead() / (_ROWS * _RUNS))
                self._say(f"not all of them may come about; {need} would do, or fewer by -f or -A")

    def _ahead(self) -> int:
        return sum(run.rows for run in self._runs[self._number :])

    def _left(self) -> float:
        assert self._whole is not None
        return _RUNS * self._whole - self.elapsed

    @property
    def over(self) -> bool:
        """True if no further run may start."""
        return self._whole is not None and self._left() <= 0

    def row_seconds(self) -> float | None:
        """Seconds for a row of the next run; None if the run decides itself."""
        if self._whole is None:
            return None
        share = _ROWS * self._left() / max(1, self._ahead())
        return min(_MOST_S, max(_LEAST_S, share - _SETUP_S))

    def within(self) -> float | None:
        """Seconds after which the next run is stopped: its share of the time left, by its rows."""
        if self._whole is None:
            return None
        return max(0.1, self._left() * self._runs[self._number].rows / max(1, self._ahead()))

    @contextmanager
    def run(self, name: str) -> Iterator[OnLine]:
        """Account for the next run; yields a function to call with each line of its output."""
        title = f"{self._number + 1}/{len(self._runs)} {name}"
        left = self.remaining()
        self._say(title if left is None else f"{title}, about {format_duration(left)} left in all")
        self._begun = self.elapsed
        seen = sys.stderr is not None and sys.stderr.isatty()
        try:
            with show_progress(title, None) as show:

                def heard(line: str) -> None:
                    show(line)
                    at = parse_progress(line)
                    if at is not None and not seen:
                        passed = format_duration(self.elapsed)
                        self._now_and_then(f"{title}: {at.done} of {at.of} rows, {passed} passed")

                yield heard
        finally:
            self._taken += self.elapsed - self._begun
            self._number += 1

    def remaining(self) -> float | None:
        """Seconds until all runs are done, by the speed of those done; None before the first."""
        done = sum(run.seconds for run in self._runs[: self._number])
        ahead = sum(run.seconds for run in self._runs[self._number :])
        if not done:
            return None
        guess = self._taken / done * ahead
        return guess if self._whole is None else max(0.0, min(guess, self._left()))

    def _now_and_then(self, text: str) -> None:
        """Print a message if the last one was some time ago."""
        if self._clock() - self._told >= _EVERY_S:
            self._told = self._clock()
            self._say(text)


def rounds_within(runs: Sequence[Effort], minutes: float | None, most: int) -> int:
    """The number of rounds of these runs, at most ``most``, that the time limit allows.

    A further round is worth less than a row that is measured long enough.
    """
    if minutes is None:
        return most
    needed = (_ENOUGH_S + _SETUP_S) * sum(run.rows for run in runs)
    return max(1, min(most, int(_ROWS * _RUNS * 60 * minutes / needed))) if needed else most
