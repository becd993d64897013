"""A batch of iterations on all ranks: how each begins, behind a barrier or in a window of time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.clock.common import CommonClock
from bench.options.arrival import ZERO, ArrivalPattern
from collectives.execution.transport import Action
from collectives.execution.world import How, World
from reports.records.measurement import LAST, OPERATION, Window

Floats = NDArray[np.float64]
# More than this share of iterations begun too late by some rank, and windows grow.
_LOST = 0.1
# A start counts as late by this much, or by this share of the operation.
_LATE_S, _LATE = 2e-6, 0.01
# Seconds between the end of an operation and the next window, besides a multiple of its time.
_GAP_S = 50e-6
_SOON_S = 1e-3
# A rank that lost its core usually has it back by then.
_TURN_S = 20e-3


Arrived = Callable[[int], object]
"""Called with the number of an iteration that a rank begins, so that a stuck row is explained."""


class Batch(NamedTuple):
    """The iterations of a batch that count.

    ``times``: the row's, combined over ranks; ``own``: this rank's own seconds. ``also``: the same
    iterations read otherwise, combined too. ``lost``: how many do not count.
    """

    times: Floats
    own: Floats
    also: Mapping[str, Floats] = {}
    lost: int = 0


def _runs(
    plan: Action, n: int, before: int, arrived: Arrived, read: Callable[[], float],
    ready: Callable[[int], object],
) -> tuple[Floats, Floats]:  # fmt: skip
    """When each of n iterations began and ended, begun when ``ready`` of its number returns."""
    begins, ends = np.empty(n), np.empty(n)
    for i in range(n):
        arrived(before + i)
        ready(i)
        begins[i] = read()
        plan()
        ends[i] = read()
        plan.between()
    return begins, ends


def _joined(batches: Sequence[Batch]) -> Batch:
    """Batches that followed each other as one; at least one."""
    also = {name: np.concatenate([one.also[name] for one in batches]) for name in batches[0].also}
    return Batch(
        np.concatenate([one.times for one in batches]),
        np.concatenate([one.own for one in batches]),
        also,
        sum(one.lost for one in batches),
    )


class Barriers:
    """Every iteration stands behind a barrier; its time is that of the ranks' own, combined.

    ``shared``: the clock is the same on all ranks, so that also the operation's time is known.
    """

    def __init__(
        self, world: World, clock: Callable[[], float], across: How, *, shared: bool = False
    ) -> None:
        self.across: How = across
        self._world, self._clock, self._shared = world, clock, shared

    def batch(self, plan: Action, n: int, before: int, arrived: Arrived, once: float) -> Batch:
        """Run n times, after ``before`` iterations. All ranks call this together.

        ``once``: what an iteration took this rank when it warmed up.
        """
        arrived(before)
        spans = plan.spans(n) if self._shared else None
        own = plan.times(n, loop=False) if spans is None else None
        if own is not None:
            return self._combined(np.asarray(own), None)
        if spans is None:
            world = self._world
            begins, ends = _runs(plan, n, before, arrived, self._clock, lambda i: world.barrier())
        else:
            begins, ends = (np.asarray(one) for one in spans)
        return self._combined(ends - begins, (begins, ends) if self._shared else None)

    def _combined(self, own: Floats, spans: tuple[Floats, Floats] | None) -> Batch:
        # To the picosecond, which no clock resolves: what lies beyond only makes records long.
        own = np.round(own, 12)
        times = self._world.combine(own, self.across)
        if spans is None:
            return Batch(times, own)
        first = self._world.combine(spans[0], "min")
        last = self._world.combine(spans[1], "max")
        return Batch(times, own, {OPERATION: np.round(last - first, 12)})

    def window(self) -> None:
        """What a record says of windows: nothing."""


class TimeWindows:
    """Every iteration begins at an agreed time of the common clock, later by what ``arrival`` says.

    An iteration that any rank began too late does not count; where more than a tenth do not,
    windows grow. One a row and placement. ``real``: the clock that is read is the host's own, so
    that a transport may time by it.
    """

    def __init__(
        self,
        world: World,
        clock: CommonClock,
        arrival: ArrivalPattern = ZERO,
        *,
        real: bool = True,
    ) -> None:
        self._world, self._clock, self._arrival, self._real = world, clock, arrival, real
        self.across = OPERATION if arrival == ZERO else f"{LAST} of {arrival}"
        self._grown, self._usual = 1, 0.0
        self._widest, self._lost, self._begun = 0.0, 0, 0

    def batch(self, plan: Action, n: int, before: int, arrived: Arrived, once: float) -> Batch:
        """See `Barriers.batch`."""
        if plan.one_by_one and n > 1:
            return _joined([self.batch(plan, 1, before + i, arrived, once) for i in range(n)])
        world, clock = self._world, self._clock
        if not self._usual:
            self._usual = float(world.combine(np.array([once]), "max")[0])
        delays = self._arrival.delays(world.size, n, before)
        window = float(delays.max(initial=0)) + self._room()
        starts = self._agreed() + window * np.arange(n) + delays[:, world.rank]
        local = clock.local(starts).tolist()
        arrived(before)
        spans: Sequence[Sequence[float] | Floats] | None = None
        if self._real:
            spans = plan.spans(n, local)
        if spans is None:
            spans = _runs(plan, n, before, arrived, clock.read, lambda i: self._until(local[i]))
        begins, ends = (clock.common(np.asarray(one)) for one in spans)
        late = begins - starts > max(_LATE_S, _LATE * self._usual)
        return self._judged(begins, ends, late, window)

    def _room(self) -> float:
        """Seconds for an operation: as many again as it takes, and a gap; more once windows grew.

        Beyond a scheduler's turn there is nothing to win.
        """
        room = 2 * self._usual + _GAP_S
        return min(self._grown * room, max(4 * room, room + _TURN_S))

    def _agreed(self) -> float:
        """The common time at which the first window opens: once every rank surely knows it."""
        begun = self._clock.now()
        self._world.barrier()
        soon = 3 * (self._clock.now() - begun)
        return float(self._world.broadcast(self._clock.now() + max(_SOON_S, soon)))

    def _until(self, local: float) -> None:
        read = self._clock.read
        while read() < local:
            os.sched_yield()  # to whoever shares the core

    def _judged(
        self, begins: Floats, ends: Floats, late: NDArray[np.bool_], window: float
    ) -> Batch:
        combine = self._world.combine
        first, arrived, end = combine(begins, "min"), combine(begins, "max"), combine(ends, "max")
        longest = combine(ends - begins, "max")
        good = combine(late.astype(np.float64), "max") == 0
        n, lost = len(good), int((~good).sum())
        self._usual = float(np.median(end - arrived))
        self._grown *= 2 if lost > _LOST * n else 1
        self._widest = max(self._widest, window)
        self._lost, self._begun = self._lost + lost, self._begun + n
        readings = {OPERATION: end - first, LAST: end - arrived, "max": longest}
        kept = {name: np.round(one[good], 12) for name, one in readings.items()}
        times = kept.pop(OPERATION if self._arrival == ZERO else LAST)
        return Batch(times, np.round((ends - begins)[good], 12), kept, lost)

    def window(self) -> Window:
        """What a record says of the windows."""
        return Window(
            by="window",
            arrival=str(self._arrival),
            pattern=self._arrival.pattern,
            begun=self._begun,
            lost=self._lost,
            widest_s=round(self._widest, 9),
            clock_error_s=round(self._clock.line.error(self._clock.read()), 10),
        )


Begin = Barriers | TimeWindows
"""How iterations begin; ``across`` says how ranks' times become one, as a record has it."""
