"""The timing loop: barrier, clock, plan, clock.

Nothing but the collective is between the clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from collectives.execution.transport import Action
from collectives.execution.world import How, World
from reports.statistics.order import relative_width

# A median is good enough when its 95 % interval is this near, relative to it.
PRECISE = 0.02
# A median of fewer has no interval.
FEWEST = 6


class Watcher(Protocol):
    """Is told how far this rank has come, so that a stuck row can be explained."""

    def arrived(self, iteration: int) -> None:
        """This rank stands at the start of an iteration."""
        ...


@dataclass(frozen=True)
class Timing:
    """How to time: see the options of the same names in `bench.options.options`."""

    warmup: int = 1
    iterations: int | None = None
    budget: float = 2.0
    timing: str = "each"
    across: How = "max"
    per_rank: bool = False


@dataclass(frozen=True)
class Timed:
    """Seconds of each iteration, combined over ranks, and what ended the row.

    ``per_rank``: the same before they were combined, a tuple a rank; empty unless asked for.
    ``fired``: how often the plan was fired in all, warm-ups among them.
    """

    times: tuple[float, ...]
    iterations: int
    stopped: str
    per_rank: tuple[tuple[float, ...], ...] = ()
    fired: int = 0


def _endless() -> float:
    return float("inf")


def measure(
    plan: Action,
    world: World,
    clock: Callable[[], float],
    rules: Timing,
    watcher: Watcher,
    left: Callable[[], float] = _endless,
) -> Timed:
    """Time a plan on all ranks together. All ranks must call this alike; all get the same result.

    Every iteration starts behind a barrier. Without a fixed number, iterations go on in batches
    until the 95 % interval of the median is within 2 % or the budget is spent, never fewer than 6
    unless the row would take longer than ``left()`` then, by rank 0's clock; at least one.
    """
    once = 0.0
    for _ in range(rules.warmup):
        watcher.arrived(-1)
        start = clock()
        plan()
        once = clock() - start
    if rules.timing == "loop":
        return _loop(plan, world, clock, rules, watcher, left)
    times: list[float] = []
    own: list[float] = []
    batch = rules.iterations or int(world.broadcast(min(FEWEST, _room(left(), once))))
    begin = clock()
    while True:
        # To the picosecond, which no clock resolves: what lies beyond only makes records long.
        fresh = np.round(_each(plan, world, clock, batch, len(times), watcher), 12)
        times += world.combine(fresh, rules.across).tolist()
        own += fresh.tolist()
        stopped, batch = _onwards(times, clock() - begin, left(), rules)
        # One rank decides for all: their clocks may not agree on the budget.
        stopped, batch = world.broadcast([stopped, batch])
        if stopped:
            kept = _of_ranks(own, world, rules)
            return Timed(tuple(times), len(times), stopped, kept, rules.warmup + len(times))


def _of_ranks(own: list[float], world: World, rules: Timing) -> tuple[tuple[float, ...], ...]:
    """Every rank's own times, where they are to be kept."""
    return tuple(map(tuple, world.gather(own))) if rules.per_rank else ()


def _each(
    plan: Action,
    world: World,
    clock: Callable[[], float],
    n: int,
    before: int,
    watcher: Watcher,
) -> NDArray[np.float64]:
    """Seconds of n iterations on this rank, each begun behind a barrier."""
    watcher.arrived(before)
    own = plan.times(n, loop=False)
    if own is not None:
        return np.asarray(own)
    fresh = np.empty(n)
    for i in range(n):
        watcher.arrived(before + i)
        world.barrier()
        start = clock()
        plan()
        fresh[i] = clock() - start
    return fresh


def _room(left: float, once: float) -> int:
    """How many iterations of ``once`` seconds each are possible, one more being for the proof."""
    return max(1, int(min(left / once - 1, 10000))) if once > 0 else 10000


def _onwards(times: list[float], spent: float, left: float, rules: Timing) -> tuple[str, int]:
    """What ends the row, or how many come next: as many again as there were, within the budget."""
    if rules.iterations is not None:
        return "iterations", 0
    # The first few may agree by chance.
    if len(times) > FEWEST and relative_width(times) <= PRECISE:
        return "precise", 0
    each = spent / len(times)
    if left < 2 * each or (spent >= rules.budget and len(times) >= FEWEST):
        return "budget", 0
    within = int((rules.budget - spent) / each) if each > 0 else 1
    wanted = max(FEWEST - len(times), min(len(times), within, 1000))
    return "", max(1, min(wanted, _room(left, each)))


def _loop(
    plan: Action,
    world: World,
    clock: Callable[[], float],
    rules: Timing,
    watcher: Watcher,
    left: Callable[[], float],
) -> Timed:
    """``iterations`` back to back between two readings of the clock, as nccl-tests and OSU do."""
    n = rules.iterations
    if n is None:
        start = clock()
        plan()
        once = float(world.combine(np.array([clock() - start]), "max")[0])
        wanted = max(FEWEST, min(10000, int(rules.budget / max(once, 1e-7))))
        n = int(world.broadcast(min(wanted, _room(left(), once))))
    watcher.arrived(0)
    world.barrier()
    own = plan.times(n, loop=True)
    start = clock()
    if own is None:
        for _ in range(n):
            plan()
    spent = np.array([(clock() - start if own is None else own[0]) / n])
    stopped = "iterations" if rules.iterations is not None else "budget"
    times = tuple(world.combine(spent, rules.across).tolist())
    fired = rules.warmup + n + (rules.iterations is None)
    return Timed(times, n, stopped, _of_ranks(spent.tolist(), world, rules), fired)
