"""How the iterations of a row begin: after a barrier, or in time windows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.options.arrival import ZERO, ArrivalPattern
from bench.timing.clock import CommonClock
from collectives.execution.transport import Action, Floats, Spans, Start
from collectives.execution.world import How, World
from reports.records.measurement import LAST, OPERATION, Window

# If a larger fraction of iterations begins late on some rank, windows become longer.
_LOST = 0.1
# A start is late if it is off by this many seconds, or by this fraction of the operation.
_LATE_S, _LATE = 2e-6, 0.01
# Seconds between the end of an operation and the next window, besides a multiple of its time.
_GAP_S = 50e-6
_SOON_S = 1e-3
# A rank that lost its core usually has it back after so many seconds.
_TURN_S = 20e-3


Arrived = Callable[[int], object]
"""Called with the number of an iteration that a rank begins, to explain a row that hangs."""


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
        # In picoseconds, below any clock's resolution: more digits would only lengthen records.
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

    An iteration that any rank began late is not counted; if more than a tenth are late, windows
    become longer. One object for each row and placement. ``slower``: see `BarrierStart`.
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
        """See `BarrierStart.batch`."""
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
        begins, ends = common.common(spans.begins), common.common(spans.ends)
        late = begins - starts > max(_LATE_S, _LATE * self._usual)
        return self._without_late(begins, ends, late, window)

    def _room(self) -> float:
        """Seconds for an operation: twice its time and a gap; more if windows have grown.

        Windows grow by no more than a scheduler's time slice, or to 4 times this.
        """
        room = 2 * self._usual + _GAP_S
        return min(self._grown * room, max(4 * room, room + _TURN_S))

    def _agreed(self) -> float:
        """The common time of the first window, late enough for every rank to know it."""
        now = self._common.now
        begun = now()
        self._world.barrier()
        soon = 3 * (now() - begun)
        return float(self._world.broadcast(now() + max(_SOON_S, soon)))

    def _without_late(
        self, begins: Floats, ends: Floats, late: NDArray[np.bool_], window: float
    ) -> Batch:
        """Combine the iterations that no rank began late, and count the others."""
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
        """The record's field about the windows."""
        return Window(
            arrival=str(self._arrival),
            pattern=self._arrival.pattern,
            begun=self._begun,
            lost=self._lost,
            widest_s=round(self._widest, 9),
            clock_error_s=round(self._common.line.error(self.clock()), 10),
        )


def _joined(batches: Sequence[Batch]) -> Batch:
    also = {name: np.concatenate([one.also[name] for one in batches]) for name in batches[0].also}
    return Batch(
        np.concatenate([one.times for one in batches]),
        np.concatenate([one.own for one in batches]),
        also,
    )


HowToStart = BarrierStart | WindowStart
"""``across``: how ranks' times are combined, as in the record; ``clock``: the clock to read."""
