"""Ordinary or non-temporal stores: a plan's own passes are timed with each choice.

A non-temporal store does not read the line before writing it, but leaves nothing in the cache.
Which matters more depends on machine, size, ranks and passes (docs/shared-memory.md).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

import numpy as np

from collectives.execution.shm.dependences import DependenceGraph
from collectives.execution.shm.passes import STAGE, Work
from collectives.execution.shm.tasks import Place
from collectives.execution.transport import Array, Floats
from collectives.execution.world import World

T = TypeVar("T")
# What an iteration moves for every core: with less, non-temporal stores are not tried; more than
# this is not carried out to try them.
LEAST_BYTES_PER_CORE = 1 << 20
# Less would fit third-level caches of hundreds of MiB, where ordinary stores look better than they
# are for what does not fit.
MOST_BYTES_PER_CORE = 256 << 20
# More of them are taken where that needs at most so much of the time: what comes next finds less of
# the result in a cache then.
_GAIN = 0.95
_ROUNDS = 2
# With less of a rank's own among its targets, `Past.OTHERS` is as good as `Past.ALL`.
_OWN_SHARE = 0.2


class Past(Enum):
    """Which targets are stored non-temporally: none, those on other ranks, or all that may be."""

    NONE = 0
    OTHERS = 1
    ALL = 2

    def of(self, work: Work, able: set[Place]) -> set[Place]:
        """Those of a pass, of the targets for which it may be."""
        if self is Past.NONE:
            return set()
        return {p for p in able if self is Past.ALL or p.rank != work.rank}


@dataclass(frozen=True)
class Maker(Generic[T]):
    """How a rank comes to a plan of type T.

    ``able(work)``: the targets of a pass that may be stored non-temporally. ``find(place)``: this
    rank's memory from there on. ``build(graph, past)``: the plan; ``timed(plan, n)``: its seconds
    of n iterations.
    """

    able: Callable[[Work], set[Place]]
    find: Callable[[Place], Array]
    build: Callable[[DependenceGraph, Past], T]
    timed: Callable[[T, int], Floats]


def with_best_stores(
    graph: DependenceGraph,
    itemsize: int,
    cores: int,
    world: World,
    known: dict[Hashable, Past],
    to: Maker[T],
) -> T:
    """The plan of ``graph`` with the stores that take it least time, the same for all ranks.

    The choice is kept in ``known``. The ranks' own memory is worked on, and is afterwards what
    it was. All ranks call this together, and with the same in ``known``.
    """
    nbytes = sum(work.moved for work in graph.order) * itemsize
    choices = _choices(graph, to.able) if nbytes > LEAST_BYTES_PER_CORE * cores else [Past.NONE]
    if len(choices) == 1:
        return to.build(graph, choices[0])
    key = _key(graph, itemsize)
    if key in known:
        return to.build(graph, known[key])
    share = min(1.0, MOST_BYTES_PER_CORE * cores / nbytes)
    some = graph.resized(lambda n: max(min(n, 1), int(n * share))) if share < 1 else graph
    mine = (
        to.find(place)[: work.size]
        for work in some.order
        for place in work.targets
        if place.rank == world.rank and place.segment != STAGE
    )
    kept = [(memory, memory.copy()) for memory in mine]
    try:
        plans = {past: to.build(some, past) for past in choices}
        n = _iterations(nbytes * share)
        rounds = [
            [_seconds(world, to.timed(plan, n)) for plan in plans.values()] for _ in range(_ROUNDS)
        ]
    finally:
        for memory, before in kept:
            memory[:] = before
    best, least = Past.NONE, np.inf
    for past, seconds in zip(plans, np.min(rounds, axis=0), strict=True):
        if seconds < _GAIN * least:
            best, least = past, seconds
    known[key] = best
    return to.build(graph, best) if share < 1 else plans[best]


def _choices(graph: DependenceGraph, able: Callable[[Work], set[Place]]) -> list[Past]:
    """The choices that give plans which differ."""
    sizes = [(w.size, p.rank == w.rank) for w in graph.order for p in able(w)]
    total, own = sum(size for size, _ in sizes), sum(size for size, own in sizes if own)
    if not total:
        return [Past.NONE]
    return [past for past in Past if past is not Past.OTHERS or _OWN_SHARE * total <= own < total]


def _key(graph: DependenceGraph, itemsize: int) -> Hashable:
    """The data movement of an iteration, regardless of addresses."""

    def where(places: list[Place]) -> Hashable:
        return tuple((place.rank, place.start) for place in places)

    passes = ((w.rank, w.size, where(w.targets), where(w.sources)) for w in graph.order)
    return itemsize, tuple(passes)


def _iterations(nbytes: float) -> int:
    """How many iterations tell what one takes in the long run.

    Small memory comes into a third-level cache bit by bit, in 20 and more passes.
    """
    return int(max(3, min(200, (512 << 20) / nbytes)))


def _seconds(world: World, mine: Floats) -> float:
    """The median of what the slowest rank took, once the caches have settled."""
    slowest = world.combine(mine, "max")
    return float(np.median(slowest[len(mine) // 2 :]))
