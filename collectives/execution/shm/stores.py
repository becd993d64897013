"""Chooses ordinary or non-temporal stores: a plan's own copies are timed with each choice.

A non-temporal store does not read the line before writing it, but leaves nothing in the cache.
Which matters more depends on machine, size, ranks and schedule (docs/shared-memory.md).

All kinds are timed in turn, in at most five rounds. A kind with more non-temporal stores is chosen
only if it needs less than 0.95 of the time in each round; the trial ends with the first round in
which none does. So where kinds differ by less than the noise, every launch of the same sizes on the
same caches has ordinary stores. A program that disturbs a whole trial can still change the choice.
Where other programs have the cores, an iteration takes as long as the scheduler's time slices. So a
trial has a time limit; the rounds until then decide if there are two, else stores are ordinary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

import numpy as np

from collectives.execution.shm.dependences import DependenceGraph
from collectives.execution.shm.tasks import STAGE, Place, Work
from collectives.execution.transport import Array, Floats
from collectives.execution.world import World

T = TypeVar("T")
# Bytes per core that an iteration moves. Below this, non-temporal stores are not tried.
LEAST_BYTES_PER_CORE = 1 << 20
# At most so many bytes per core are moved in the trial. Fewer would fit third-level caches of
# hundreds of MiB, where ordinary stores look better than they are for larger data.
MOST_BYTES_PER_CORE = 256 << 20
# Choose more non-temporal stores only if they need at most this share of the time: the code that
# follows finds less of the result in a cache then.
_GAIN = 0.95
# Rounds of a trial. A kind must be better in each, so that noise alone changes nothing.
_ROUNDS = 5
# Fewest rounds that decide when time is up, and the limit: seconds at least, and bytes per second
# and core at which all rounds would just end in time.
_FEWEST, _LEAST_S, _SLOWEST = 2, 1.0, 2e9
# If less of the bytes goes to a rank's own memory, `Past.OTHERS` is as good as `Past.ALL`.
_OWN_SHARE = 0.2


class Past(Enum):
    """Which targets get non-temporal stores: none, those on other ranks, or all possible ones."""

    NONE = 0
    OTHERS = 1
    ALL = 2

    def of(self, work: Work, able: set[Place]) -> set[Place]:
        """The targets of a pass that get non-temporal stores, among those in ``able``."""
        if self is Past.NONE:
            return set()
        return {p for p in able if self is Past.ALL or p.rank != work.rank}


@dataclass(frozen=True)
class Maker(Generic[T]):
    """The functions that make and time a plan of type T.

    ``able(work)``: the targets of a pass that may be stored non-temporally. ``find(place)``: this
    rank's memory from a place on. ``build(graph, past)``: makes the plan. ``timed(plan, n)``:
    seconds of each of n iterations.
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
    """The plan of ``graph`` with the fastest kind of stores, the same for all ranks.

    The choice is stored in ``known``. The ranks' own memory is used for the trial and restored
    afterwards. All ranks call this together, with equal ``known``.
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
        most = _ROUNDS * len(plans) * n * nbytes * share / (_SLOWEST * cores)
        number = _tried(lambda past: to.timed(plans[past], n), choices, world, max(_LEAST_S, most))
    finally:
        for memory, before in kept:
            memory[:] = before
    best = known[key] = choices[number]
    return to.build(graph, best) if share < 1 else plans[best]


def _tried(
    timed: Callable[[Past], Floats], choices: Sequence[Past], world: World, most: float
) -> int:
    """Time the kinds of stores in rounds, for ``most`` seconds; returns the number of the best.

    Every rank gets the same: the limit counts iterations of the slowest rank.
    """
    rounds, spent = list[list[float]](), 0.0
    while True:
        seconds = list[float]()
        for past in choices:
            if spent > most:
                return (_best(rounds, 1) or 0) if len(rounds) >= _FEWEST else 0
            slowest = world.combine(timed(past), "max")
            seconds.append(_settled(slowest))
            spent += float(slowest.sum())
        rounds.append(seconds)
        if (number := _best(rounds)) is not None:
            return number


def _best(rounds: Sequence[Sequence[float]], enough: int = _ROUNDS) -> int | None:
    """Which kind of stores to use, as its index in a round; None if more rounds are needed.

    ``rounds``: for each round the seconds of each kind, from the fewest non-temporal stores to the
    most. A kind needs to be faster in each of ``enough`` rounds than one with fewer such stores.
    """
    best = 0
    for kind in range(1, len(rounds[0])):
        if all(seconds[kind] < _GAIN * seconds[best] for seconds in rounds):
            if len(rounds) < enough:
                return None
            best = kind
    return best


def _choices(graph: DependenceGraph, able: Callable[[Work], set[Place]]) -> list[Past]:
    """The kinds of stores that give different plans."""
    sizes = [(w.size, p.rank == w.rank) for w in graph.order for p in able(w)]
    total, own = sum(size for size, _ in sizes), sum(size for size, own in sizes if own)
    if not total:
        return [Past.NONE]
    return [past for past in Past if past is not Past.OTHERS or _OWN_SHARE * total <= own < total]


def _key(graph: DependenceGraph, itemsize: int) -> Hashable:
    """A key for the data movement of an iteration, regardless of addresses."""

    def where(places: list[Place]) -> Hashable:
        return tuple((place.rank, place.start) for place in places)

    passes = ((w.rank, w.size, where(w.targets), where(w.sources)) for w in graph.order)
    return itemsize, tuple(passes)


def _iterations(nbytes: float) -> int:
    """The number of iterations after which times are steady.

    Small memory moves into a third-level cache gradually, in 20 and more iterations.
    """
    return int(max(3, min(200, (512 << 20) / nbytes)))


def _settled(slowest: Floats) -> float:
    """The median time of the second half of the iterations, when the caches have settled."""
    return float(np.median(slowest[len(slowest) // 2 :]))
