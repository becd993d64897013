"""Ordinary stores or stores past the caches: a plan's own passes are timed with each choice.

Those past the caches spare the reading of a line before it is written, and lose what would have stayed
in a cache; which weighs more differs by machine, size, ranks and passes (docs/shared-memory.md).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeVar

import numpy as np

from collectives.shared.flow import STAGE, Flow, Work
from collectives.shared.tasks import Place
from collectives.transport import Array
from collectives.world import World

__all__ = ["Past", "with_best_stores"]

T = TypeVar("T")
# What a firing moves for every core: with less, stores past the caches are not tried; more than
# this is not carried out to try them.
LEAST_BYTES_PER_CORE = 1 << 20
MOST_BYTES_PER_CORE = 32 << 20
# More of them are taken where that needs at most so much of the time: what comes next finds less of
# the result in a cache then.
_GAIN = 0.95
_ROUNDS = 2
# With less of a rank's own among its targets, `Past.OTHERS` is as good as `Past.ALL`.
_OWN_SHARE = 0.2


class Past(Enum):
    """Which targets are stored past the caches: none, those on other ranks, or all that may be."""

    NONE = 0
    OTHERS = 1
    ALL = 2

    def of(self, work: Work, able: set[Place]) -> set[Place]:
        """Those of a pass, of the targets for which it may be."""
        if self is Past.NONE:
            return set()
        return {p for p in able if self is Past.ALL or p.rank != work.rank}


def with_best_stores(
    found: Flow,
    itemsize: int,
    cores: int,
    world: World,
    find: Callable[[Place], Array],
    make: Callable[[Flow, Past], T],
    timed: Callable[[T, int], list[float]],
) -> T:
    """The plan of ``found`` with the stores that take it less time, the same for all ranks.

    ``make(flow, past)`` builds this rank's plan; ``timed(plan, n)`` gives its seconds of n firings;
    ``find`` gives the memory from a place on. The ranks' own memory is worked on, and is afterwards
    what it was. All ranks call this together.
    """
    nbytes = sum(work.moved for work in found.order) * itemsize
    if nbytes <= LEAST_BYTES_PER_CORE * cores or _in_place(found):
        return make(found, Past.NONE)
    share = min(1.0, MOST_BYTES_PER_CORE * cores / nbytes)
    some = found.resized(lambda n: max(min(n, 1), int(n * share))) if share < 1 else found
    mine = (
        find(place)[: work.size]
        for work in some.order
        for place in work.targets
        if place.rank == world.rank and place.segment != STAGE
    )
    kept = [(memory, memory.copy()) for memory in mine]
    try:
        plans = {past: make(some, past) for past in _choices(found)}
        n = _firings(nbytes * share)
        rounds = [
            [_seconds(world, timed(plan, n)) for plan in plans.values()] for _ in range(_ROUNDS)
        ]
    finally:
        for memory, before in kept:
            memory[:] = before
    best, least = Past.NONE, np.inf
    for past, seconds in zip(plans, np.min(rounds, axis=0), strict=True):
        if seconds < _GAIN * least:
            best, least = past, seconds
    return make(found, best) if share < 1 else plans[best]


def _choices(found: Flow) -> list[Past]:
    """What may differ for a plan."""
    every = [(w.rank == place.rank) * w.size for w in found.order for place in w.targets]
    total = sum(len(w.targets) * w.size for w in found.order)
    return [p for p in Past if p is not Past.OTHERS or sum(every) >= _OWN_SHARE * total]


def _in_place(found: Flow) -> bool:
    """Whether every pass writes only what it has read."""
    return all({*work.targets} <= {*work.sources} for work in found.order)


def _firings(nbytes: float) -> int:
    """How many firings tell what one takes in the long run.

    Small memory comes into a third-level cache bit by bit, in 20 and more passes.
    """
    return int(max(7, min(200, (512 << 20) / nbytes)))


def _seconds(world: World, mine: list[float]) -> float:
    """The median of what the slowest rank took, once the caches have settled."""
    slowest = world.combine(np.array(mine), "max")
    return float(np.median(slowest[len(mine) // 2 :]))
