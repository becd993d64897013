"""The order of a sweep's rows, the time limit of each, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bench.options.arrival import ArrivalPattern
from bench.options.options import Options
from bench.run.contenders import Contender, Job, SizeDependentContender, SizeRow, rows
from bench.run.memory import Need, Pool, Room, beside, buffers, lack
from busbar.units import format_duration
from collectives.execution.world import World
from collectives.schedule.dtypes import dtype
from reports.records.measurement import grouped

# Seconds of a row besides --budget: trial of stores, roofline, plan, checked iteration.
SETUP_S = 2.0
# Seconds per byte of all ranks' buffers: page faults, filling, six slow iterations. 16 ranks on two
# cores need most of this.
PER_BYTE_S = 5.0 / 2**30
# Seconds more with --energy: a row goes on until its energy can be measured.
ENERGY_S = 2.5
_FADES = 0.8


def at_most(seconds: float, *, crowded: bool, each: bool = False) -> str:
    """The most that a plan takes, in words; ``crowded``: ranks share cores, which is not in it.

    ``each``: the plan is of one of several launches.
    """
    more = ", more as ranks share cores" if crowded else ""
    return f"{format_duration(seconds)} at most {'a launch' if each else 'in all'}{more}"


def longest(jobs: Sequence[Job], nranks: int, seen: Sequence[Sequence[Pool]]) -> float:
    """The most seconds that a sweep may take.

    It counts all repetitions of the sweep (``--cycles``) and arrival patterns with their delays;
    `Options.total` is a limit. ``seen``: the free memory of every rank before the first row;
    rows that do not fit take no time.
    """
    options = jobs[0].options
    seconds = sum(limits(jobs, nranks, seen)) * max(1, options.cycles) * passes(options)
    return seconds if options.total is None else min(seconds, options.total)


def waits(options: Options) -> float:
    """The most seconds that a launch waits before its first row (``--wait-quiet``)."""
    return options.wait_quiet or 0.0


def passes(options: Options) -> int:
    """How often a cycle measures each row: once for each arrival pattern and each delay."""
    return len(options.arrivals) * len(options.inject or (None,))


def limits(jobs: Sequence[Job], nranks: int, seen: Sequence[Sequence[Pool]]) -> list[float]:
    """Seconds allowed for each row and placement of a sweep, in their order.

    ``seen``: the memory pools of every rank before the first row. Rows that do not fit get 0.
    """
    return [seconds for job in jobs for seconds in _of_job(job, nranks, seen)]


def _of_job(job: Job, nranks: int, seen: Sequence[Sequence[Pool]]) -> Iterator[float]:
    spec, options = job.spec, job.options
    known: dict[tuple[bool, int, int, int, bool], float] = {}
    for chosen in job.chosen:
        for row in rows(spec, options, nranks):
            itemsize = dtype(row.dtype).itemsize
            for placement in options.placements:
                in_place = placement == "in"
                key = chosen.library, row.size, row.root, itemsize, in_place
                if key not in known:
                    sizes = buffers(spec, nranks, row.root, row.elements, itemsize, in_place)
                    own = [sum(each) for each in zip(*sizes.values(), strict=True)]
                    more = [chosen.library * beside(spec, sizes, rank) for rank in range(nranks)]
                    needs = [Need(a + b) for a, b in zip(own, more, strict=True)]
                    runs = (spec.in_place or not in_place) and lack(needs, seen) is None
                    limit = options.budget + SETUP_S + ENERGY_S * options.energy
                    known[key] = limit + PER_BYTE_S * sum(own) if runs else 0.0
                yield known[key]


class Pace:
    """Elapsed and remaining time of a sweep, by one rank's clock.

    ``limits`` are those of `limits`. A row may also use the time that earlier rows left over, so
    that the whole sweep keeps within the sum. If the number of iterations is fixed (not
    ``bounded``) rows have no limit, and the limits serve only to estimate the remaining time.
    ``most``: seconds after which no row begins (``--total``), or None. ``largest``: the largest
    size in bytes that fits in memory if larger ones do not, else None. Time before the first row
    does not count, such as that of ``--wait-quiet``.
    """

    def __init__(
        self,
        limits: Sequence[float],
        *,
        bounded: bool = True,
        most: float | None = None,
        largest: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self.bounded, self.most, self._clock = list(limits), bounded, most, clock
        self.largest = largest
        self._start: float | None = None
        self._at, self._allowed, self._begun = -1, 0.0, 0.0
        # Seconds that rows took, and their limits. The last rows weigh most, as they are most like
        # the next ones.
        self._taken = self._granted = 0.0

    @property
    def total(self) -> float:
        """Seconds that the sweep may take."""
        return sum(self._limits)

    @property
    def elapsed(self) -> float:
        """Seconds since the first row began; 0 before."""
        return 0.0 if self._start is None else self._clock() - self._start

    def begin(self) -> None:
        """Begin the next row and placement; after the last one, the first again (``-N 0``)."""
        if self._start is None:
            self._start = self._clock()
        if self._at >= 0 and self._limits:
            self._taken = _FADES * self._taken + self.elapsed - self._begun
            self._granted = _FADES * self._granted + self._limits[self._at]
        self._begun = self.elapsed
        self._at += 1
        if self._at >= len(self._limits):
            self._at, self._allowed = 0, self._begun
        self._allowed += self._limits[self._at] if self._limits else float("inf")

    def is_over(self) -> bool:
        """True if no further row may begin."""
        return self.most is not None and self.elapsed >= self.most

    def left(self) -> float:
        """Seconds that the current row and placement may still take."""
        return self._allowed - self.elapsed if self.bounded else float("inf")

    def is_late(self) -> bool:
        """True if the current row has taken longer than is expected from the rows before it."""
        return self._granted > 0 and self._late() > 0

    def _late(self) -> float:
        expected = self._taken / self._granted * self._limits[self._at]
        return self.elapsed - self._begun - expected

    def remaining(self) -> float | None:
        """Estimated seconds until the sweep ends, from the rows so far; None before the first.

        A row that exceeds its expected time by d seconds is expected to take d more, and the rows
        after it to be as slow as if it ended now.
        """
        if not self._granted:
            return None
        now, limit = self.elapsed - self._begun, self._limits[self._at]
        share, late = self._taken / self._granted, self._late()
        if late > 0:
            share = (_FADES * self._taken + now) / (_FADES * self._granted + limit)
        rest = abs(late) + share * sum(self._limits[self._at + 1 :])
        return rest if self.most is None else min(rest, max(0.0, self.most - self.elapsed))


class PlannedRow(NamedTuple):
    """A row to measure, and the table that it belongs to.

    ``slower``: fraction by which an iteration is lengthened on purpose (``--inject``), or None.
    """

    job: Job
    chosen: SizeDependentContender | Contender
    line: SizeRow
    arrival: ArrivalPattern
    slower: float | None

    @property
    def table(self) -> tuple[object, ...]:
        """Properties that the rows of a table share."""
        return id(self.job), self.chosen, self.arrival, self.slower

    @property
    def block(self) -> tuple[object, ...]:
        """Properties shared by rows that stay together if the order is not by algorithm."""
        return self.job.spec.name, self.line.dtype, self.line.op, self.line.root, self.line.size


def all_work(jobs: Sequence[Job], nranks: int) -> list[PlannedRow]:
    """The rows of all tables, one arrival pattern after the other."""
    return [
        PlannedRow(job, chosen, line, arrival, slower)
        for arrival in jobs[0].options.arrivals
        for slower in jobs[0].options.inject or (None,)
        for job in jobs
        for chosen in job.chosen
        for line in rows(job.spec, job.options, nranks)
    ]


def order(options: Options, work: Sequence[PlannedRow], cycle: int) -> Sequence[int]:
    """The order in which rows are measured: as listed, by size, or drawn by the launch's seed."""
    if options.launch is not None:
        return options.launch.order([row.block for row in work], cycle)
    if options.order == "size":
        blocks = grouped(range(len(work)), lambda at: work[at].block)
        return [at for block in blocks.values() for at in block]
    return range(len(work))


def planned(jobs: Sequence[Job], world: World, room: Room) -> Pace:
    """Time limits of the rows of all cycles, in measuring order. Rank 0 computes them.

    With ``--total`` their sum is at most that, and no row begins later.
    """
    seen, options = room.seen(), jobs[0].options
    width, seconds, largest = len(options.placements), list[float](), None
    if world.rank == 0:
        work, one_pass = all_work(jobs, world.size), limits(jobs, world.size, seen)
        one_pass *= passes(options)
        fitting = [
            one.line.size
            for at, one in enumerate(work)
            if any(one_pass[at * width : (at + 1) * width])
        ]
        if fitting and max(fitting) < max(one.line.size for one in work):
            largest = max(fitting)
        for cycle in range(max(1, options.cycles)):
            for at in order(options, work, cycle):
                seconds += one_pass[at * width : (at + 1) * width]
    if options.total is not None and options.total < sum(seconds):
        share = options.total / sum(seconds)
        seconds = [share * one for one in seconds]
    bounded = options.iterations is None
    return Pace(seconds, bounded=bounded, most=options.total, largest=largest)
