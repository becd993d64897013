"""The timing loop: how many iterations a row has, and when it ends.

Nothing but the collective runs between two readings of the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from bench.run.batches import Arrived, Barriers, Begin
from collectives.execution.transport import Action
from collectives.execution.world import How, Json, World
from reports.statistics.quantities import relative_width
from reports.statistics.stability import ORDERED
from reports.statistics.steady import steady

# A median is good enough when its 95 % interval is this near, relative to it.
PRECISE = 0.02
# A median of fewer has no interval.
FEWEST = 6
# So many times as many iterations as are wanted, and those that are lost end the row.
_TRIES = 20


@dataclass(frozen=True)
class Timing:
    """How to time: see the options of the same names in `bench.options.options`.

    ``precise``: the relative width of the median's 95 % interval that is enough; 0: none is.
    ``settle``: leave out what came before iterations were steady; not of a given number.
    """

    warmup: int = 1
    iterations: int | None = None
    budget: float = 2.0
    timing: str = "each"
    across: How = "max"
    per_rank: bool = False
    precise: float = PRECISE
    settle: bool = False


@dataclass(frozen=True)
class Timed:
    """Seconds of each iteration, combined over ranks, and what ended the row.

    ``per_rank``: the same before they were combined, a tuple a rank; empty unless asked for.
    ``runs``: how often the plan was run in all, warm-ups and lost iterations among them.
    ``across``, ``also``, ``sync`` and ``warm_up``: see `reports.records.record.Sample`.
    """

    times: tuple[float, ...]
    iterations: int
    stopped: str
    per_rank: tuple[tuple[float, ...], ...] = ()
    runs: int = 0
    across: str = "max"
    also: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    sync: Mapping[str, Json] = field(default_factory=dict)
    warm_up: tuple[float, ...] = ()


def unwatched(iteration: int) -> None:
    """Nobody watches."""


def _endless() -> float:
    return float("inf")


def measure(
    plan: Action,
    world: World,
    clock: Callable[[], float],
    rules: Timing,
    arrived: Arrived = unwatched,
    left: Callable[[], float] = _endless,
    begin: Begin | None = None,
) -> Timed:
    """Time a plan on all ranks together. All ranks must call this alike; all get the same result.

    ``begin``: how an iteration begins; behind a barrier where it is left out. Without a fixed
    number, iterations go on in batches until the 95 % interval of the median is within 2 % or the
    budget is spent. There are 6 at least, unless the row would then take longer than ``left()`` by
    rank 0's clock, and always one.
    """
    how: Begin = begin or Barriers(world, clock, rules.across)
    once = 0.0
    for _ in range(rules.warmup):
        arrived(-1)
        start = clock()
        plan()
        once = clock() - start
        plan.between()
    if rules.timing == "loop":
        return _loop(plan, world, clock, rules, arrived, left)
    times, own = list[float](), list[float]()
    also: dict[str, list[float]] = {}
    runs, batch = 0, rules.iterations or int(world.broadcast(min(FEWEST, _room(left(), once))))
    start = clock()
    while True:
        fresh = how.batch(plan, batch, runs, arrived, once)
        runs += batch
        times += fresh.times.tolist()
        own += fresh.own.tolist()
        for name, values in fresh.also.items():
            also.setdefault(name, []).extend(values.tolist())
        decided = ["", 0, 0]
        # One rank decides for all: their clocks may not agree on the budget.
        if world.rank == 0:
            decided = list(_decided(times, runs, clock() - start, left(), rules))
        stopped, batch, cut = world.broadcast(decided)
        if stopped:
            return Timed(
                tuple(times[cut:]),
                len(times) - cut,
                stopped,
                _of_ranks(own[cut:], world, rules),
                rules.warmup + runs,
                how.across,
                {name: tuple(values[cut:]) for name, values in also.items()},
                how.facts(),
                tuple(times[:cut]),
            )


def _of_ranks(own: list[float], world: World, rules: Timing) -> tuple[tuple[float, ...], ...]:
    """Every rank's own times, where they are to be kept."""
    return tuple(map(tuple, world.gather(own))) if rules.per_rank else ()


def _room(left: float, once: float) -> int:
    """How many iterations of ``once`` seconds each are possible, one more being for the proof."""
    return max(1, int(min(left / once - 1, 10000))) if once > 0 else 10000


def _decided(
    times: list[float], runs: int, spent: float, left: float, rules: Timing
) -> tuple[str, int, int]:
    """`_onwards`, and of a row that ends how many first iterations are its warm-up.

    Without these it may be less precise than with them, and goes on if there is time.
    """
    stopped, batch = _onwards(times, runs, spent, left, rules)
    if not rules.settle or stopped not in ("precise", "budget"):
        return stopped, batch, 0
    cut = steady(times).warm_up
    if stopped == "precise" and cut and relative_width(times[cut:]) >= rules.precise:
        stopped, batch = _onwards(times, runs, spent, left, replace(rules, precise=0.0))
    return stopped, batch, cut if stopped else 0


def _onwards(
    times: list[float], runs: int, spent: float, left: float, rules: Timing
) -> tuple[str, int]:
    """What ends the row, or how many come next: as many again as there were, within the budget.

    ``runs``: how many iterations there were, with those that are lost.
    """
    if rules.iterations is not None:
        missing = rules.iterations - len(times)
        if not missing:
            return "iterations", 0
        return ("", missing) if runs < _TRIES * (rules.iterations + FEWEST) else ("lost", 0)
    # The first few may agree by chance, or because each resembles the one before.
    if len(times) >= ORDERED and relative_width(times) < rules.precise:
        return "precise", 0
    if len(times) < FEWEST and runs >= _TRIES * FEWEST:
        return "lost", 0
    each = spent / runs
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
    arrived: Arrived,
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
    arrived(0)
    world.barrier()
    own = plan.times(n, loop=True)
    start = clock()
    if own is None:
        for _ in range(n):
            plan()
    spent = np.array([(clock() - start if own is None else own[0]) / n])
    stopped = "iterations" if rules.iterations is not None else "budget"
    times = tuple(world.combine(spent, rules.across).tolist())
    runs = rules.warmup + n + (rules.iterations is None)
    kept = _of_ranks(spent.tolist(), world, rules)
    return Timed(times, n, stopped, kept, runs, rules.across)
