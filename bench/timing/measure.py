"""The timing loop: how many iterations a row has, and when it ends.

Between two readings of the clock only the collective runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from bench.timing.starts import Arrived, BarrierStart, HowToStart
from collectives.execution.transport import Action, Counted, unwatched
from collectives.execution.world import How, World
from reports.records.measurement import Record
from reports.statistics.quantities import relative_width
from reports.statistics.steady import steady

# A median is precise when half of its 95 % interval is at most this share of it.
PRECISE = 0.02
# The median of fewer iterations has no interval.
FEWEST = 6
# Least number of iterations, and least seconds, before a row can end as `precise`. Fewer iterations
# may all lie on one of several levels. A shorter row may lie in one state of other work.
ENOUGH, ENOUGH_S = 60, 0.25
# The interval is checked again when there are this many times as many iterations. More frequent
# checks would more often find an interval that is narrow by chance.
_APART = 2**0.5
# A row ends as `lost` after this many times the wanted iterations, if too few of them count.
_TRIES = 20
# A batch has at most _KEPT iterations, or lasts the budget divided by _PARTS if that is longer. Its
# last _KEPT iterations are kept: a row of 0.3 us an iteration has millions within its budget, and
# 10,000 of them, spread over the budget, give the same median and interval.
_KEPT, _PARTS = 50, 200
#: Times that ``per_rank`` keeps of a placement, over all ranks: some 20 MB in a record.
MOST_PER_RANK = 1 << 20


@dataclass(frozen=True)
class Timing:
    """Rules of timing: see the options of the same names in `bench.options.options`.

    ``precise``: the relative width of the median's 95 % interval at which a row ends; 0: never.
    ``settle``: leave out iterations before times are steady; not with a fixed number. ``keep_all``:
    keep the times of all iterations, however short they are.
    """

    warmup: int = 1
    iterations: int | None = None
    budget: float = 2.0
    timing: str = "each"
    across: How = "max"
    per_rank: bool = False
    precise: float = PRECISE
    settle: bool = False
    keep_all: bool = False


class FunctionAction(Counted):
    """A function as an action that moves no data."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__(0, 0)
        self._function = function

    def __call__(self) -> None:
        """Call the function."""
        self._function()

    def close(self) -> None:
        """Do nothing; no resources are held."""


def measure(
    action: Action,
    world: World,
    rules: Timing,
    how: HowToStart | None = None,
    arrived: Arrived = unwatched,
    left: Callable[[], float] = lambda: inf,
) -> Record:
    """Time an action on all ranks together. All ranks call this alike, and get the same record.

    The record has the seconds of each iteration, combined over ranks, and why the row ended.

    ``how``: how iterations begin; by default after a barrier, as ``rules`` say. Without a fixed
    number, batches of iterations run until the 95 % interval of the median is within 2 % or the
    budget is spent. Of iterations shorter than a 10,000th of the budget, the last ones of each
    batch are kept, or with ``rules.keep_all`` all. There are at least 6 iterations, or at least 1
    if 6 would take longer than ``left()`` by rank 0's clock. A loop has one batch and one time, the
    mean.
    """
    loop = rules.timing == "loop"
    how = how or BarrierStart(world, rules.across, loop=loop)
    clock, once = how.clock, 0.0
    for _ in range(rules.warmup):
        arrived(-1)
        start = clock()
        action()
        once = clock() - start
        action.between()
    if loop:
        return _loop(action, world, rules, how, arrived, left)
    times, own = list[float](), list[float]()
    also: dict[str, list[float]] = {}
    ending = _Ending(rules)
    runs, batch = 0, rules.iterations or int(world.broadcast(min(FEWEST, _room(left(), once))))
    start = clock()
    last = slice(0 if rules.iterations or rules.keep_all else -_KEPT, None)
    while True:
        fresh = how.batch(action, batch, runs, arrived, once)
        runs += batch
        times += fresh.times[last].tolist()
        own += fresh.own[last].tolist()
        for name, values in fresh.also.items():
            also.setdefault(name, []).extend(values[last].tolist())
        decided = ["", 0, 0]
        # One rank decides for all: their clocks may not agree on the budget.
        if world.rank == 0:
            decided = list(ending.decided(times, runs, clock() - start, left()))
        stopped, batch, cut = world.broadcast(decided)
        if stopped:
            return Record(
                timing=rules.timing,
                across=how.across,
                stopped=stopped,
                times_s=tuple(times[cut:]),
                iterations=len(times) - cut,
                runs=rules.warmup + runs,
                per_rank_s=_of_ranks(own[cut:], world, rules),
                warm_up_s=tuple(times[:cut]),
                also={name: tuple(values[cut:]) for name, values in also.items()},
                window=how.window(),
            )


def _loop(
    action: Action,
    world: World,
    rules: Timing,
    how: HowToStart,
    arrived: Arrived,
    left: Callable[[], float],
) -> Record:
    """Run iterations back to back between two readings of the clock, as nccl-tests and OSU do."""
    n, stopped, runs = rules.iterations, "iterations", rules.warmup
    if n is None:
        start = how.clock()
        action()
        once = float(world.combine(np.array([how.clock() - start]), "max")[0])
        wanted = max(FEWEST, min(10000, int(rules.budget / max(once, 1e-7))))
        n = int(world.broadcast(min(wanted, _room(left(), once))))
        stopped, runs = "budget", runs + 1
    whole = how.batch(action, n, 0, arrived, 0.0)
    return Record(
        timing=rules.timing,
        across=how.across,
        stopped=stopped,
        times_s=tuple(whole.times.tolist()),
        iterations=n,
        runs=runs + n,
        per_rank_s=_of_ranks(whole.own.tolist(), world, rules),
    )


def _of_ranks(own: list[float], world: World, rules: Timing) -> tuple[tuple[float, ...], ...]:
    """Every rank's own times if they are kept: the last ones, `MOST_PER_RANK` in total."""
    if not rules.per_rank:
        return ()
    last = max(1, MOST_PER_RANK // world.size)
    return tuple(map(tuple, world.gather(own[-last:])))


def _room(left: float, once: float) -> int:
    """How many iterations of ``once`` seconds fit into ``left``, beside one to check results."""
    return max(1, int(min(left / once - 1, 10000))) if once > 0 else 10000


class _Ending:
    """Decides when a row ends and how many iterations follow; used by the rank that decides.

    The interval is checked each time that the number of iterations has grown by `_APART`. It must
    be narrow at two successive checks: a row that ended at the first narrow interval would often
    end with an interval that is too narrow by chance.
    """

    def __init__(self, rules: Timing) -> None:
        self._rules = rules
        # The next check, in iterations and seconds; the first comes one before the earliest end.
        self._due, self._due_s = ENOUGH / _APART, ENOUGH_S / _APART
        self._narrow = False

    def decided(
        self, times: list[float], runs: int, spent: float, left: float
    ) -> tuple[str, int, int]:
        """Why the row ends ("" if not), the size of the next batch, how many first times to drop.

        ``runs``: iterations so far, with those that do not count. ``spent``: their seconds.
        ``left``: the seconds that the row may still take.
        """
        stopped, batch = self._onwards(times, runs, spent, left)
        if not self._rules.settle or stopped not in ("precise", "budget"):
            return stopped, batch, 0
        cut = steady(times).warm_up
        rest = times[cut:]
        enough = stopped == "budget" or (self._enough(rest, sum(rest)) and self._is_narrow(rest))
        if enough or not cut:
            return stopped, batch, cut
        self._narrow = False
        return *self._more(times, runs, spent, left), 0

    def _enough(self, times: Sequence[float], seconds: float) -> bool:
        return len(times) >= ENOUGH and seconds >= ENOUGH_S

    def _is_narrow(self, times: Sequence[float]) -> bool:
        return relative_width(times) < self._rules.precise

    def _onwards(self, times: list[float], runs: int, spent: float, left: float) -> tuple[str, int]:
        rules = self._rules
        if rules.iterations is not None:
            missing = rules.iterations - len(times)
            if not missing:
                return "iterations", 0
            return ("", missing) if runs < _TRIES * (rules.iterations + FEWEST) else ("lost", 0)
        if len(times) >= self._due and spent >= self._due_s:
            self._due, self._due_s = len(times) * _APART, spent * _APART
            before, self._narrow = self._narrow, self._is_narrow(times)
            if before and self._narrow and self._enough(times, spent):
                return "precise", 0
        return self._more(times, runs, spent, left)

    def _more(self, times: list[float], runs: int, spent: float, left: float) -> tuple[str, int]:
        """Why the row ends, or "" and the iterations until the next check, within the budget."""
        rules = self._rules
        if len(times) < FEWEST and runs >= _TRIES * FEWEST:
            return "lost", 0
        each = spent / runs
        if left < 2 * each or (spent >= rules.budget and len(times) >= FEWEST):
            return "budget", 0
        within = int((rules.budget - spent) / each) if each > 0 else 1
        due, most = self._due - len(times), _KEPT
        if each > 0:
            due = max(due, (self._due_s - spent) / each)
            most = max(most, int(rules.budget / _PARTS / each))
        wanted = max(FEWEST - len(times), min(ceil(due), within, most))
        return "", max(1, min(wanted, _room(left, each)))
