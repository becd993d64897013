"""``busbar selfcheck``: checks that verdicts on equal and on slowed sides are right.

Counts verdicts of compare on equal and on slowed sides, and how often intervals hold the true
median. Simulated rows, whose median is known, are measured by `bench.timing.measure` on a simulated
clock, so the rule that ends rows is checked as well.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from math import exp, log, sqrt
from pathlib import Path
from random import Random
from secrets import randbelow
from statistics import NormalDist, mean, median, variance
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from bench.launch import child
from bench.launch.launch import Interrupted, launcher
from bench.options.argument_types import at_least, seconds
from bench.options.launching import MOST_SEED, LaunchTurn
from bench.run.screen import Screen
from bench.timing.measure import FunctionAction, Timing, measure
from bench.timing.starts import BarrierStart
from bench.trials.ab import launch, side
from bench.trials.harness import PAIR_TESTS
from busbar.arguments import unknown
from busbar.commands import Command
from busbar.errors import Unavailable, Unsupported
from busbar.host import cores
from busbar.launchers import find_mpirun, launched
from busbar.mpi import library_version, load_mpi
from busbar.options import option, switch
from busbar.start import python
from busbar.statistics import interval, student_quantile
from busbar.units import format_count, format_seconds, format_size
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.transport import Spans, Start
from reports.analysis.compare import compare, join
from reports.readers import codec
from reports.records.measurement import Measurement, grouped
from reports.statistics.inference import launch_scatter, least_seen

#: The iterations of a window. Its interval should hold the median of this many windows around it,
#: half of them before and half after it.
WINDOW, WINDOWS = 100, 10
#: A slowdown of at least ASKED must be found in this share of the pairs, and this share of equal
#: pairs must be called equal.
ASKED, ASKED_SHARE = 0.05, 0.95


@dataclass(frozen=True)
class CheckLine:
    """A figure of the check. ``passed``: whether it meets the target; None: it is only shown."""

    name: str
    result: str
    target: str = ""
    passed: bool | None = None

    def __str__(self) -> str:
        """One line."""
        if self.passed is None:
            return f"{self.name}: {self.result}"
        return (
            f"{self.name}: {self.result} ({self.target}): {'kept' if self.passed else 'NOT KEPT'}"
        )


def words(a: Iterable[Measurement], b: Iterable[Measurement]) -> Counter[str]:
    """How often compare gives each verdict on the rows of A and of B, each row by itself.

    The verdicts are not corrected for the number of rows, which would make false alarms rarer.
    """
    return Counter(compare([one])[0].word for one in join(list(a), list(b))[0])


def equal_sides(words: Counter[str], launches: int) -> CheckLine:
    """The result for equal sides with ``launches`` launches each."""
    total = words.total()
    if launches == 1:
        counted = sum(words[word] for word in ("faster", "slower", "indistinguishable"))
        text = f"{words['cannot tell']} of {total} pairs cannot tell"
        return CheckLine("A/A, one launch a side", text, "no verdict", not counted and total > 0)
    return indistinguishable(f"A/A, {launches} launches a side", words)


def indistinguishable(name: str, words: Counter[str]) -> CheckLine:
    """The target for equal sides: 95 % of pairs called equal, minus those that chance may miss.

    If each pair is missed once in twenty, one check in twenty misses more than that.
    """
    total, right = words.total(), words["indistinguishable"] + words["cannot tell"]
    most = most_by_chance(total, 1 - ASKED_SHARE)
    text = f"{100 * right / (total or 1):.1f} % of {total} pairs neither faster nor slower"
    target = f"95 %, and by chance {most} of {total} may be missed"
    return CheckLine(name, text, target, total - right <= most and total > 0)


def most_by_chance(n: int, p: float) -> int:
    """The number that n independent cases of probability p exceed with at most 5 % probability."""
    below, k = (1 - p) ** n, 0
    chance = below
    while below < ASKED_SHARE:
        chance *= (n - k) / (k + 1) * p / (1 - p)
        below, k = below + chance, k + 1
    return k


Cell = tuple[str, int]
"""A transport and a size."""


@dataclass
class SlowedSides:
    """Verdicts on one side slowed, and how much launches differ, by transport and size.

    ``launches``: of a set; each measures A and, slowed by each share, B.
    """

    launches: int
    words: dict[float, Counter[str]] = field(default_factory=dict)
    #: The same for separate launches: A of one set against B of the next set.
    separate: dict[float, Counter[str]] = field(default_factory=dict)
    equal: Counter[str] = field(default_factory=Counter)
    #: The variance of launches, and that of the difference within them.
    between: dict[Cell, list[float]] = field(default_factory=dict)
    within: dict[Cell, list[float]] = field(default_factory=dict)
    _before: dict[str, Sequence[Measurement]] = field(default_factory=dict)

    def add(self, shares: Mapping[float, Sequence[Measurement]]) -> None:
        """Add launches over one transport: ``shares`` has the rows of each slowdown, of A at 0."""
        base = shares[0.0]
        before = self._before.get(base[0].transport)
        self._before[base[0].transport] = _figures(base)
        self.equal += words(*_turns(base))
        for share in sorted(shares.keys() - {0.0}):
            counts = self.words.setdefault(share, Counter())
            for one in join(base, shares[share])[0]:
                counts[compare([one])[0].word] += 1
                cell = one.base.transport, one.base.size or 0
                self.within.setdefault(cell, []).append(variance(one.within))
                scatter = launch_scatter(one.base_runs, one.new_runs) or 0.0
                self.between.setdefault(cell, []).append(scatter**2)
            if before:
                apart = words(before, _figures(shares[share]))
                self.separate.setdefault(share, Counter()).update(apart)

    def lines(self) -> Iterator[CheckLine]:
        """A line for equal sides, one for each slowdown, and one for each transport and size."""
        yield indistinguishable(f"A/A within {self.launches} launches", self.equal)
        for share, counts in self.words.items():
            yield slowed_side(counts, share, self.launches)
        for share, counts in self.separate.items():
            name = f"slowed by {100 * share:g} %, {self.launches} separate launches a side"
            yield CheckLine(name, f"{_slower(counts)}, {counts['faster']} faster")
        for cell in sorted(self.within):
            yield self._line(cell)

    def _line(self, cell: Cell) -> CheckLine:
        apart, within = (sqrt(mean(cells[cell])) for cells in (self.between, self.within))
        seen = least_seen(apart, self.launches), least_seen(within, self.launches, within=True)
        text = (
            f"launches differ by {100 * apart:.2g} %, differences within them by"
            f" {100 * within:.2g} %: {self.launches} launches of both sides see"
            f" {100 * seen[1]:.2g} %, separate ones {100 * seen[0]:.2g} %"
        )
        return CheckLine(f"  {cell[0]}, {format_size(cell[1])}", text)


def _figures(rows: Iterable[Measurement]) -> list[Measurement]:
    """The rows with their medians only: a bootstrap of all iterations would take minutes."""
    return [replace(r, times_s=()) for r in rows]


def _turns(rows: Iterable[Measurement]) -> tuple[list[Measurement], list[Measurement]]:
    """Split the rows of each launch and size into two sides, by turns.

    A launch measures a row several times: the first, third, … and the second, fourth, ….
    """
    sides: tuple[list[Measurement], list[Measurement]] = [], []
    for visits in grouped(rows, lambda r: (id(r.run), r.size)).values():
        for rows_of_side, one in zip(sides, (visits[::2], visits[1::2]), strict=True):
            rows_of_side.extend(one)
    return sides


def slowed_side(words: Counter[str], share: float, launches: int) -> CheckLine:
    """The target for a slowed side: never faster, and from 5 % on found in 95 % of the pairs."""
    text = f"{_slower(words)}, {words['faster']} faster"
    name = f"slowed by {100 * share:g} % within {launches} launches"
    right = not words["faster"] and bool(words)
    if share < ASKED:
        return CheckLine(name, text, "never faster", right)
    enough = words["slower"] >= ASKED_SHARE * words.total()
    return CheckLine(name, text, "95 % slower, never faster", right and enough)


def _slower(words: Counter[str]) -> str:
    total = words.total()
    return f"{100 * words['slower'] / (total or 1):.1f} % of {total} pairs slower"


def coverage(rows: Iterable[Measurement]) -> tuple[int, int]:
    """Count windows of iterations whose interval contains the median of the windows around them.

    Returns (hits, windows). Five windows before a window and five after it are ten times as many
    iterations, without the window's own. An even drift has the same effect on both.
    """
    hits = total = 0
    half = WINDOWS // 2
    for row in rows:
        series = np.asarray(row.times_s)
        windows = series[: len(series) // WINDOW * WINDOW].reshape(-1, WINDOW)
        for at in range(half, len(windows) - half):
            around = windows[at - half : at], windows[at + 1 : at + 1 + half]
            middle = float(np.median(np.concatenate(around)))
            low, high = interval(windows[at]) or (np.inf, -np.inf)
            hits += bool(low <= middle <= high)
            total += 1
    return hits, total


def covered(hits: int, total: int) -> CheckLine:
    """The result: the share of hits in all windows."""
    share = hits / total if total else 0.0
    text = f"{100 * share:.1f} % of {total} intervals hold the median of {WINDOWS} times as many"
    return CheckLine("coverage", text, "93 % at least", share >= 0.93)


def against_c(
    name: str, launches: Sequence[tuple[float, float, float]], *, faster: bool = False
) -> CheckLine:
    """The result for a collective's calls in our loop and in C, in turns within each launch.

    ``launches``: seconds in our loop, in C, and their ratio. ``faster``: our loop may be faster by
    more than 5 %. The interval is Student's t on the logarithms of the launches' ratios.
    """
    logs = [log(ratio) for _, _, ratio in launches]
    middle, error = mean(logs), sqrt(variance(logs) / len(logs))
    off = student_quantile(0.025, len(logs) - 1) * error
    ends = " to ".join(f"{100 * (exp(middle + x) - 1):+.1f}" for x in (-off, off))
    ours, c = (format_seconds(median(one[side] for one in launches)) for side in (0, 1))
    text = f"{ours} and {c}, {100 * (exp(middle) - 1):+.1f} % ({ends})"
    off, rule = exp(middle) - 1, "at most 5 % slower" if faster else "within 5 %"
    return CheckLine(name, text, rule, off <= 0.05 and (faster or off >= -0.05))


Floats = NDArray[np.float64]

#: Seconds of an iteration.
USUAL_S = 1e-3
#: The share of rows whose interval is to hold the true median.
HELD = 0.93
# Seconds of a neighbour's burst, and seconds between two bursts.
_ON_S, _OFF_S = 0.05, 0.2
_NOISE = 0.02


class IndependentSeries:
    """Iterations of one row, in seconds: independent and lognormal.

    ``noise``: the standard deviation of the logarithm.
    """

    def __init__(
        self, random: np.random.Generator, usual: float = USUAL_S, noise: float = 0.1
    ) -> None:
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

    def __init__(self, random: np.random.Generator, r: float = 0.9) -> None:
        super().__init__(random, noise=0.03)
        self._r, self._last = r, float(random.standard_normal())

    def _logs(self, n: int) -> Floats:
        logs: Floats = np.sqrt(1 - self._r**2) * self._random.standard_normal(n)
        for i in range(n):
            self._last = logs[i] = self._r * self._last + logs[i]
        return logs


class TwoLevels(IndependentSeries):
    """Times around two values, one 15 % above the other, with 1 % of noise.

    ``stay``: the chance that the next iteration has the same one, for each. With 0.95 and 0.9 a
    third of the iterations have the upper one.
    """

    def __init__(
        self, random: np.random.Generator, stay: tuple[float, float] = (0.95, 0.95)
    ) -> None:
        super().__init__(random, noise=0.01)
        self._stay, self._above = stay, (1 - stay[0]) / (2 - sum(stay))
        self._level = int(random.random() < self._above)

    def take(self, n: int) -> Floats:
        """The next n times."""
        levels = np.empty(n)
        for i, draw in enumerate(self._random.random(n)):
            levels[i] = self._level
            self._level ^= int(draw > self._stay[self._level])
        return np.asarray(super().take(n) * (1 + 0.15 * levels))

    def true_median(self) -> float:
        """The median of the mixture of both levels; of equal shares it is half way between."""
        low = NormalDist(0, self._noise)
        high = NormalDist(float(np.log(1.15)), self._noise)
        ends = [low.mean - 9 * self._noise, high.mean + 9 * self._noise]
        for _ in range(60):
            middle = sum(ends) / 2
            share = (1 - self._above) * low.cdf(middle) + self._above * high.cdf(middle)
            ends[share > 0.5] = middle
        return self._usual * exp(ends[0])


class Drift(IndependentSeries):
    """Times that rise by 5 % per second."""

    def __init__(self, random: np.random.Generator) -> None:
        super().__init__(random, noise=_NOISE)
        self._seconds = 0.0

    def take(self, n: int) -> Floats:
        """The next n times."""
        at = self._seconds + self._usual * np.arange(n)
        times = super().take(n) * np.exp(0.05 * at)
        self._seconds += float(times.sum())
        return np.asarray(times)

    def true_median(self) -> float:
        """The usual time at the middle of the row's time so far, the median of a drift."""
        return self._usual * exp(0.05 * self._seconds / 2)


class Bursts(IndependentSeries):
    """A neighbour is active for 50 ms, then idle for 200; meanwhile iterations take 30 % longer."""

    def __init__(self, random: np.random.Generator) -> None:
        super().__init__(random, noise=_NOISE)
        self._now = float(random.random()) * (_ON_S + _OFF_S)

    def take(self, n: int) -> Floats:
        """The next n times."""
        times = super().take(n)
        for i in range(n):
            times[i] *= 1.3 if self._now % (_ON_S + _OFF_S) >= _OFF_S else 1.0
            self._now += times[i]
        return times

    @staticmethod
    @cache
    def true_median() -> float:
        """The median over many bursts and pauses."""
        return float(median(Bursts(np.random.default_rng(0)).take(100_000).tolist()))


#: By name: what makes the series of a row.
PROCESSES: dict[str, Callable[[np.random.Generator], IndependentSeries]] = {
    "independent": IndependentSeries,
    "autoregression 0.9": Autoregression,
    "autoregression 0.98": lambda random: Autoregression(random, r=0.98),
    "two levels 0.95": TwoLevels,
    "two levels 0.95, 0.9": lambda random: TwoLevels(random, stay=(0.95, 0.9)),
    "drift": Drift,
    "bursts": Bursts,
}


class _Passing(FunctionAction):
    """An action that advances a clock by the times of a series."""

    def __init__(self, series: IndependentSeries) -> None:
        super().__init__(lambda: self._pass(1))
        self._series, self.now = series, 0.0

    def _pass(self, n: int) -> Floats:
        """Advance the clock by n iterations; returns their times."""
        times = self._series.take(n)
        self.now += float(times.sum())
        return times

    def spans(self, n: int, start: Start) -> Spans:
        return Spans(np.zeros(n), self._pass(n), absolute=False)


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
    process: Callable[[np.random.Generator], IndependentSeries],
    rows: int,
    rules: Timing | None = None,
) -> list[EndedRow]:
    """``rows`` rows of a process, each with its own seed, measured like rows without ``-n``."""
    rules = rules or Timing(settle=True)

    def ended(world: InprocWorld, seed: int) -> EndedRow:
        series = process(np.random.default_rng([1, seed]))
        plan = _Passing(series)
        timed = measure(plan, world, rules, BarrierStart(world, clock=lambda: plan.now))
        ends, true = interval(timed.times_s), series.true_median()
        held = None if ends is None else ends[0] <= true <= ends[1]
        return EndedRow(timed.stopped, held, len(timed.times_s) + len(timed.warm_up_s), plan.now)

    return run(1, lambda world: [ended(world, n) for n in range(rows)], deadline=3600)[0]


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


_LAUNCHES = 5  # of a side that is slowed, or not
_SLOWED = (0.02, 0.05, 0.1, 0.2)
_COMMON = ("-A", "ring", "--placement", "out", "--limit", "none", "-c", "0")
_LONG = 3  # launches of long rows
_PARTS = ("stopping", "equal", "slowed", "coverage", "harness")
_MESSAGES = "messages"  # a part that runs only where it is named
# Of the whole time: equal sides, slowed sides, coverage, the harness.
_SHARES = (0.36, 0.5, 0.04, 0.1)
# Additions of a schedule by the widest vectors that the processor has, as the extension does them.
_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")
_LOOP = Path(__file__).parents[2] / "benchmarks" / "collective_loop.c"


class _Form(NamedTuple):
    """How much a self-check measures. ``budget``: seconds of the whole.

    ``equal``, ``slowed``: sets of launches of equal sides, and of sides of which one is slowed.
    ``visits``: how often a launch of slowed sides measures a row, in turns with other rows of its
    size, so that a disturbance of milliseconds affects few of them. ``launches``: those that are
    compared with C. ``rows``: rows of each simulated process.
    """

    budget: float
    equal: int
    slowed: int
    visits: int
    launches: int
    rows: int


_WHOLE = _Form(1140.0, 10, 14, 12, 7, 100)
_QUICK = _Form(100.0, 2, 2, 2, 2, 20)


class SelfcheckCommand(Command):
    """Check the tool itself.

    Measure equal sides, and sides slowed by a known share, and count how often compare is right.
    Count how often confidence intervals hold the true median. Measure what the harness costs. This
    takes at most 20 minutes and needs a quiet machine.
    """

    quick: bool = switch("--quick  only a few launches of each, in two minutes")
    ranks: int = option("--ranks N", 2, at_least(2, "ranks", 1024))
    transport: str = option("--transport NAMES", "shm,mpi")
    budget: float | None = option(
        f"--budget SECONDS|10m  time limit of the whole check (default {_WHOLE.budget:g})",
        parse=seconds,
    )
    parts: tuple[str, ...] = option(
        f"--parts NAMES  these parts only, joined by commas: {', '.join(_PARTS)}; or {_MESSAGES}:"
        " point-to-point messages against C, on two ranks",
        (),
        lambda text: tuple(text.split(",")),
    )
    seed: int | None = option(
        "--seed N  seed of all orders", parse=at_least(0, "as seed", MOST_SEED)
    )

    def run(self) -> int:
        """Return 0 if all checks pass, else 1."""
        if launched() is not None:
            raise Unsupported("bench.selfcheck starts launches of its own; run it without mpirun")
        for name in self.parts or _PARTS:
            if name not in (*_PARTS, _MESSAGES):
                raise unknown("part", name, (*_PARTS, _MESSAGES))
        if _MESSAGES in self.parts and self.ranks != 2:
            raise Unsupported(f"--parts {_MESSAGES} takes two ranks, and --ranks is {self.ranks}")
        form = _QUICK if self.quick else _WHOLE
        form = form if self.budget is None else form._replace(budget=self.budget)
        seed = randbelow(MOST_SEED) if self.seed is None else self.seed
        transports, passed = self.transport.split(","), True
        with TemporaryDirectory(prefix="busbar-") as folder:
            check = _Check(Path(folder), self.ranks, transports, form, seed)
            check.screen.lines(
                [f"{format_count(self.ranks, 'rank')}, {', '.join(transports)}, seed {seed}"]
            )
            try:
                checks = (check.ends, check.equal, check.slowed, check.covers, check.harness)
                parts = dict(zip(_PARTS, checks, strict=True)) | {_MESSAGES: check.messages}
                for name in self.parts or _PARTS:
                    for line in parts[name]():
                        check.screen.lines([str(line)])
                        passed = passed and line.passed is not False
            except Interrupted as end:
                return end.exit_status
        return 0 if passed else 1


class _Check:
    """The parts of the check, each with its share of the time, over launches of one benchmark."""

    def __init__(
        self, folder: Path, ranks: int, transports: list[str], form: _Form, seed: int
    ) -> None:
        self._folder, self._ranks, self._transports = folder, ranks, transports
        self._form, self._seed, self._random = form, seed, Random(seed)
        self.screen, self._number, self._begun = Screen(0), 0, time.monotonic()

    def _launch(self, name: str, transport: str, *more: str) -> Path:
        """Launch once; returns the file of its records."""
        self._number += 1
        # Ranks that the system may put on one core are as far apart as launches can be.
        affinity = ("--affinity", "core") if self._ranks <= len(cores()) else ()
        where = ("--ranks", str(self._ranks), "--transport", transport)
        file = self._folder / f"{self._number:04}.jsonl"
        print(f"busbar: launch {self._number}, {name}", file=sys.stderr, flush=True)
        turn = LaunchTurn(self._number, 0, self._seed)
        launch(side(name, ["allreduce", *where, *_COMMON, *affinity, *more]), file, turn)
        return file

    def _sets(self, sets: int, part: int) -> Iterator[str]:
        """Yield the transport of each set, in turns, while there is time for another set."""
        longest = 0.0
        end = self._begun + self._form.budget * sum(_SHARES[: part + 1])
        for number in range(sets):
            start = time.monotonic()
            if number and start + longest > end:
                print(f"busbar: time for {number} of {sets} sets", file=sys.stderr, flush=True)
                return
            yield self._transports[number % len(self._transports)]
            longest = max(longest, time.monotonic() - start)

    def ends(self) -> Iterator[CheckLine]:
        """Rows that end by themselves, with known medians on a simulated clock."""
        for name, process in PROCESSES.items():
            yield stopping_line(name, ended_rows(process, self._form.rows))

    def equal(self) -> Iterator[CheckLine]:
        """Equal sides with three launches each; the first of these also as one launch each."""
        one, three = Counter[str](), Counter[str]()
        sizes = ("-b", "8", "-e", "64M", "-f", "2", "--budget", "0.03")
        for transport in self._sets(self._form.equal, 0):
            files = [self._launch("equal sides", transport, *sizes) for _ in range(6)]
            self._random.shuffle(files)
            rows = [_rows(file)[0.0] for file in files]
            three += words(chain(*rows[:3]), chain(*rows[3:]))
            one += words(rows[0], rows[3])
        yield equal_sides(one, 1)
        yield equal_sides(three, 3)

    def slowed(self) -> Iterator[CheckLine]:
        """One slowed side: both sides take turns in each launch."""
        sides = SlowedSides(_LAUNCHES)
        sizes = ("-b", "256", "-e", "4M", "-f", "4", "--budget", "0.02")
        shares = ("--inject", ",".join(map(str, (0, *_SLOWED))), f"-N{self._form.visits}")
        for transport in self._sets(self._form.slowed, 1):
            every: dict[float, list[Measurement]] = {}
            for _ in range(_LAUNCHES):
                file = self._launch("slowed sides", transport, *sizes, *shares)
                for share, rows in _rows(file).items():
                    every.setdefault(share, []).extend(rows)
            sides.add(every)
        yield from sides.lines()

    def covers(self) -> Iterator[CheckLine]:
        """Coverage of intervals, in windows of long rows."""
        hits = total = 0
        for transport in self._transports * _LONG:
            more = ("-b", "8", "-e", "32K", "-f", "16", "-n", "10000")
            coverages = coverage(_rows(self._launch("long rows", transport, *more))[0.0])
            hits, total = hits + coverages[0], total + coverages[1]
        yield covered(hits, total)

    def harness(self) -> Iterator[CheckLine]:
        """The harness's own costs (never subtracted), and MPI's collectives against C."""
        library, reason = self._c_loop()
        launches = self._harness(library)
        yield CheckLine("a reading of the clock", format_seconds(launches[0]["clock"]))
        yield CheckLine("a barrier, the slowest rank's", format_seconds(launches[0]["barrier"]))
        yield CheckLine("an empty plan", format_seconds(launches[0]["empty"]))
        yield from _lines_against_c(launches, reason)

    def messages(self) -> Iterator[CheckLine]:
        """Point-to-point messages, puts and gets compared with a loop in C."""
        library, reason = self._c_loop()
        launches = self._harness([*library, *PAIR_TESTS]) if library else []
        yield from _lines_against_c(launches, reason, faster=True)  # puts reach aligned memory

    def _harness(self, words_: Sequence[str]) -> list[Any]:
        """The output of `bench.trials.harness`: of one launch, or of several against C."""
        command = [*python("bench.trials.harness"), *words_]
        count = self._form.launches if words_ else 1
        return [json.loads(self._ranks_of(command)) for _ in range(count)]

    def _c_loop(self) -> tuple[list[str], str]:
        """Compile the C loop; returns its path in a list, or an empty list and the reason."""
        library = self._folder / "collective_loop.so"
        beside = str(Path(sys.executable).parent)
        compiler = shutil.which("mpicc", path=beside) or shutil.which("mpicc")
        if compiler is None or not _LOOP.exists():
            return [], "no mpicc, or no source for it"
        build = [compiler, *_FLAGS, "-o", str(library), str(_LOOP)]
        if subprocess.run(build, capture_output=True, check=False).returncode:
            return [], "mpicc failed"
        return [str(library)], ""

    def _ranks_of(self, command: Sequence[str]) -> str:
        """The output of a command started on all ranks. Raises Unavailable if it fails."""
        library = library_version(load_mpi())
        words_, env = launcher(self._ranks, library, find_mpirun(), os.environ)
        file = self._folder / "printed"
        with file.open("w") as out:
            ended = child.run([*words_, *command], env, stdout=out, stderr=subprocess.PIPE)
        if ended.interrupted:
            raise Interrupted(ended.interrupted)
        if ended.status:
            last = (ended.err.strip().splitlines() or ["nothing said"])[-1]
            raise Unavailable(f"{command[-1]}: exit status {ended.status}: {last}")
        return file.read_text()


def _lines_against_c(
    launches: Sequence[Any], reason: str, *, faster: bool = False
) -> Iterator[CheckLine]:
    """A line for each operation and size, as `against_c` makes it.

    ``reason``: why nothing was measured; empty if it was.
    """
    if reason:
        yield CheckLine("against C", f"not measured: {reason}")
        return
    for what, by_size in launches[0]["against_c"].items():
        for size in by_size:
            name = f"{what} of {format_size(int(size))} against C"
            # A schedule's own staging is placed better than malloc places C's.
            free = faster or not what.startswith("MPI's")
            yield against_c(name, [one["against_c"][what][size] for one in launches], faster=free)


def _rows(file: Path) -> Mapping[float, Sequence[Measurement]]:
    """The rows of a launch by the fraction by which they were slowed; 0 for no slowdown."""
    return grouped(codec.measurements(file.read_text()), lambda row: row.injected or 0.0)
