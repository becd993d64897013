"""How the iterations of a row begin (``--sync``, ``--arrival``): by a barrier, or in a window."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.options.arrival import ZERO, ArrivalPattern
from bench.timing.clock import CommonClock, Skew, skew
from busbar.errors import Unsupported
from busbar.host import hostname
from collectives.execution.transport import Action, Floats, Spans, Start, Transport
from collectives.execution.world import How, Json, World
from reports.records.measurement import LAST, OPERATION, Record, Window

if TYPE_CHECKING:
    from bench.options.options import Options

# Windows grow if more than this share of iterations began too late on some rank.
_LOST = 0.1
# A start is late by more than this many seconds, or by more than this share of the operation.
_LATE_S, _LATE = 2e-6, 0.01
# Seconds between the end of an operation and the next window, besides a multiple of its time.
_GAP_S = 50e-6
_SOON_S = 1e-3
# Seconds after which a rank that lost its core usually has it again.
_TURN_S = 20e-3


Arrived = Callable[[int], object]
"""Called with the number of an iteration that a rank begins, so that a stuck row is explained."""


class Batch(NamedTuple):
    """The valid iterations of a batch.

    ``times``: combined over ranks, for the row; ``own``: this rank's own seconds. ``also``: other
    times of the same iterations, by name, also combined.
    """

    times: Floats
    own: Floats
    also: Mapping[str, Floats] = {}


def _run(action: Action, n: int, before: int, arrived: Arrived, start: Start) -> Spans:
    """Time n iterations after ``before`` others; ``arrived`` gets their numbers in the row."""
    arrived(before)
    return action.spans(n, start._replace(arrived=lambda i: arrived(before + i)))


class BarrierStart:
    """Iterations begin after a barrier; their times are the ranks' own, combined as ``across``.

    ``loop``: the iterations of a batch run back to back after one barrier, and the batch has one
    time, the mean. ``one_clock``: all ranks read the same clock, so that the operation's time, from
    the first start to the last end, is also known. ``slower``: the fraction by which each iteration
    is lengthened, for the self-check of comparisons.
    """

    def __init__(
        self,
        world: World,
        across: How = "max",
        *,
        clock: Callable[[], float] = time.perf_counter,
        loop: bool = False,
        one_clock: bool = False,
        slower: float = 0.0,
    ) -> None:
        self.across, self.clock = across, clock
        self._world, self._loop, self._one_clock, self._slower = world, loop, one_clock, slower

    def batch(self, action: Action, n: int, before: int, arrived: Arrived, once: float) -> Batch:
        """Run n iterations, after ``before`` others. All ranks call this together.

        ``once``: seconds of a warm-up iteration on this rank.
        """
        start = Start(self._world.barrier, loop=self._loop, slower=self._slower, clock=self.clock)
        spans, combine = _run(action, n, before, arrived, start), self._world.combine
        if self._loop:
            own = spans.seconds / n
            return Batch(combine(own, self.across), own)
        # Rounded to the picosecond, which no clock resolves, so that records are shorter.
        own = np.round(spans.seconds, 12)
        times = combine(own, self.across)
        if not (self._one_clock and spans.absolute):
            return Batch(times, own)
        operation = combine(spans.ends, "max") - combine(spans.begins, "min")
        return Batch(times, own, {OPERATION: np.round(operation, 12)})

    def window(self) -> None:
        """The record's field of the same name; None, because there are no windows."""


class WindowStart:
    """Iterations begin at agreed times of the common clock, on each rank later by ``arrival``.

    An iteration that any rank began after its time is not counted; if that is more than a tenth,
    there is more time between iterations. One object for each row and placement. ``slower``: see
    `BarrierStart`.
    """

    def __init__(
        self,
        world: World,
        clock: CommonClock,
        arrival: ArrivalPattern = ZERO,
        *,
        slower: float = 0.0,
    ) -> None:
        self._world, self._common, self._arrival, self._slower = world, clock, arrival, slower
        self.clock = clock.read
        self.across = OPERATION if arrival == ZERO else f"{LAST} of {arrival}"
        self._grown, self._usual = 1, 0.0
        self._widest, self._lost, self._begun = 0.0, 0, 0

    def batch(self, action: Action, n: int, before: int, arrived: Arrived, once: float) -> Batch:
        """Run n iterations at agreed times; returns those that all ranks began in time.

        All ranks call this together. Parameters: see `BarrierStart.batch`.
        """
        if action.one_by_one and n > 1:
            return _joined([self.batch(action, 1, before + i, arrived, once) for i in range(n)])
        world, common = self._world, self._common
        if not self._usual:
            longest = float(world.combine(np.array([once]), "max")[0])
            self._usual = (1 + self._slower) * longest
        delays = self._arrival.delays(world.size, n, before)
        window = float(delays.max(initial=0)) + self._room()
        starts = self._agreed() + window * np.arange(n) + delays[:, world.rank]
        local = common.local(starts).tolist()
        start = Start(world.barrier, local, slower=self._slower, clock=self.clock)
        spans = _run(action, n, before, arrived, start)
        begins, ends = common.line.other(spans.begins), common.line.other(spans.ends)
        late = begins - starts > max(_LATE_S, _LATE * self._usual)
        return self._without_late(begins, ends, late, window)

    def _room(self) -> float:
        """Seconds for an operation: twice its time and a gap; more if windows have grown.

        Windows grow by no more than a scheduler's time slice, or to 4 times this.
        """
        room = 2 * self._usual + _GAP_S
        return min(self._grown * room, max(4 * room, room + _TURN_S))

    def _agreed(self) -> float:
        """The common time at which the first iteration begins; all ranks get it before it comes."""
        now = self._common.now
        begun = now()
        self._world.barrier()
        soon = 3 * (now() - begun)
        return float(self._world.broadcast(now() + max(_SOON_S, soon)))

    def _without_late(
        self, begins: Floats, ends: Floats, late: NDArray[np.bool_], window: float
    ) -> Batch:
        """Combine the iterations that every rank began in time, and count the others.

        ``late``: the iterations that this rank began after their time. ``window``: seconds between
        the starts of two iterations.
        """
        combine = self._world.combine
        first, last, end = combine(begins, "min"), combine(begins, "max"), combine(ends, "max")
        longest = combine(ends - begins, "max")
        good = combine(late.astype(np.float64), "max") == 0
        n, lost = len(good), int((~good).sum())
        self._usual = float(np.median(end - last))
        self._grown *= 2 if lost > _LOST * n else 1
        self._widest = max(self._widest, window)
        self._lost, self._begun = self._lost + lost, self._begun + n
        readings = {OPERATION: end - first, LAST: end - last, "max": longest}
        also = {name: np.round(one[good], 12) for name, one in readings.items()}
        times = also.pop(OPERATION if self._arrival == ZERO else LAST)
        return Batch(times, np.round((ends - begins)[good], 12), also)

    def window(self) -> Window:
        """The windows of the row, for its record."""
        return Window(
            arrival=str(self._arrival),
            pattern=self._arrival.pattern,
            begun=self._begun,
            lost=self._lost,
            widest_s=round(self._widest, 9),
            clock_error_s=round(self._common.line.error(self.clock()), 10),
        )


def _joined(batches: Sequence[Batch]) -> Batch:
    """One batch of several that followed each other; at least one."""
    also = {name: np.concatenate([one.also[name] for one in batches]) for name in batches[0].also}
    return Batch(
        np.concatenate([one.times for one in batches]),
        np.concatenate([one.own for one in batches]),
        also,
    )


HowToStart = BarrierStart | WindowStart
"""``across``: how the ranks' times are combined, as in a record. ``clock``: reads the time."""


class StartSync:
    """How the iterations of a run begin, on one rank; all ranks create one together.

    Raises Unsupported if windows are requested and a GPU takes the times, or if an arrival pattern
    does not fit the ranks.
    """

    def __init__(self, world: World, transport: Transport, options: Options) -> None:
        self._world, self._transport, self._options = world, transport, options
        several = max(world.nodes) > 0
        self._skew = (skew(os.environ, hostname()) if several else None) or Skew()
        self._clock: CommonClock | None = None
        for arrival in options.arrivals:
            arrival.on(world.size)
        if options.sync == "barrier":
            return
        if transport.on_gpu:
            raise Unsupported(
                "--sync window needs times by the host's clock; a GPU's are taken by events on its"
                " stream: use --sync barrier"
            )
        self._clock = CommonClock(world, self._skew.clock(), world.nodes)

    def begin(self, arrival: ArrivalPattern, slower: float | None = None) -> HowToStart:
        """How the iterations of one row and placement begin. All ranks call this together.

        ``slower``: the fraction by which each iteration is lengthened; None: not at all.
        """
        world, options = self._world, self._options
        if self._clock is None:
            return BarrierStart(
                world,
                options.across,
                loop=options.timing == "loop",
                one_clock=max(world.nodes) == 0 and not self._transport.on_gpu,
                slower=slower or 0.0,
            )
        self._clock.check()
        return WindowStart(world, self._clock, arrival, slower=slower or 0.0)

    def at(self, arrival: ArrivalPattern, row: Record, rows: Sequence[Record]) -> ArrivalPattern:
        """The arrival pattern of ``row``, which has no times yet; ``rows``: all rows so far."""
        unknown = arrival.seconds is None
        return arrival.on(self._world.size, fastest(rows, row) if unknown else None)

    def facts(self) -> Mapping[str, Json]:
        """The clock in a record's environment."""
        return {} if self._clock is None else self._clock.facts()

    def remarks(self, arrival: ArrivalPattern) -> list[str]:
        """The lines above a table's rows; none with barriers. All ranks call this."""
        clock = self._clock
        if clock is None:
            return []
        lines = ["time: from the earliest start to the latest end on one clock (--sync window)"]
        if arrival != ZERO:
            arrival = arrival.on(self._world.size)
            lines = [f"time: from the last rank's arrival to the latest end (--arrival {arrival})"]
        if not clock.exchanged:
            return [*lines, "clock: CLOCK_MONOTONIC of this host, which all ranks share"]
        return [*lines, clock.describe(), *self._recovered(clock)]

    def _recovered(self, clock: CommonClock) -> list[str]:
        """The error of each rank's common clock, known exactly where clocks are emulated."""
        emulated = self._world.gather(list(self._skew))
        if not any(map(any, emulated)):
            return []
        true = self._world.broadcast(time.perf_counter())
        shown = clock.line.other(self._skew.of(true))
        everyone = self._world.gather(shown)
        worst = max(abs(one - everyone[0]) for one in everyone)
        most, fast = (max(abs(one[i]) for one in emulated) for i in (0, 1))
        return [
            f"clocks are emulated, up to {most:g} s and {fast * 1e6:g} ppm off;"
            f" recovered to {worst * 1e6:.3g} us"
        ]


def fastest(rows: Sequence[Record], like: Record) -> float:
    """The median time of the fastest algorithm for the case of ``like``, without delays; or 0.

    Rounded to two digits, because arrival patterns are named by this time.
    """
    times = [
        median(row.times_s)
        for row in rows
        if row.times_s
        and _without_algorithm(row) == _without_algorithm(like)
        and row.window is not None
        and row.window.arrival == str(ZERO)
    ]
    return float(f"{min(times, default=0.0):.2g}")


def _without_algorithm(row: Record) -> tuple[object, ...]:
    """The fields of a row's case: all but its algorithm and the arrival of ranks."""
    return row.collective, row.size, row.dtype, row.op, row.root, row.placement
