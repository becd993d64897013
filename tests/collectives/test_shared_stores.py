"""A plan's stores are those that took least time, the same on every rank; nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import RankFailure
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.shm import stores
from collectives.execution.shm.dependences import DependenceGraph
from collectives.execution.shm.stores import LEAST_BYTES_PER_CORE, Maker, Past, with_best_stores
from collectives.execution.shm.tasks import Place, Work
from collectives.execution.transport import Array, Floats

Made = tuple[DependenceGraph, Past]
Able = Callable[[Work], set[Place]]
ITEM = 8


def _flow(nranks: int, size: int, targets: Sequence[tuple[int, int]]) -> DependenceGraph:
    """Every rank copies so many elements of its own to (rank further on, segment)."""
    works = tuple(
        Work(r, size, [Place((r + on) % nranks, s, 0) for on, s in targets], [Place(r, 0, 0)])
        for r in range(nranks)
    )
    return DependenceGraph(tuple((w,) for w in works), ((),) * nranks, (0,) * nranks, True, works)


OWN, BOTH, OTHERS, IN_PLACE = [(0, 1)], [(0, 1), (1, 2)], [(1, 1)], [(0, 0)]


def _all_but_read(work: Work) -> set[Place]:
    """Targets that are not sources as well."""
    return {*work.targets} - {*work.sources}


class _Rank:
    """A rank whose plans write its memory full, and take the seconds that they are told."""

    def __init__(self, world: InprocWorld, size: int, seconds: dict[Past, float]) -> None:
        self.world, self.seconds = world, seconds
        self.memory = {s: np.arange(size) + 100 * world.rank + s for s in (0, 1, 2)}
        self.known: dict[Hashable, Past] = {}
        self.made: list[Made] = []
        self.fired: list[tuple[Past, int, int]] = []

    def find(self, place: Place) -> Array:
        assert place.rank == self.world.rank
        return self.memory[place.segment][place.start :]

    def make(self, found: DependenceGraph, past: Past) -> Made:
        self.made.append((found, past))
        return self.made[-1]

    def timed(self, plan: Made, n: int) -> Floats:
        found, past = plan
        size = found.order[0].size
        for place in (p for w in found.order for p in w.targets if p.rank == self.world.rank):
            self.find(place)[:size] = -1
        self.fired.append((past, size, n))
        return np.full(n, 1e-5 * self.seconds[past])

    def choose(self, found: DependenceGraph, cores: int, able: Able = _all_but_read) -> Made:
        maker = Maker(able, self.find, self.make, self.timed)
        return with_best_stores(found, ITEM, cores, self.world, self.known, maker)


SECONDS = st.fixed_dictionaries({past: st.sampled_from([1.0, 1.02, 2.0, 3.0]) for past in Past})


TARGETS = st.sampled_from([OWN, BOTH, OTHERS, IN_PLACE])


def _choices(nranks: int, targets: list[tuple[int, int]]) -> set[Past]:
    """What makes plans that differ."""
    if targets == IN_PLACE:
        return {Past.NONE}
    return set(Past) if targets == BOTH and nranks > 1 else {Past.NONE, Past.ALL}


@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 400_000), TARGETS, st.data())
def test_the_slowest_rank_decides_for_all(
    nranks: int, cores: int, size: int, targets: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Rule: all get what takes least, whole, the caches' own where it hardly differs.

    Memory is as before.
    """
    seconds = [data.draw(SECONDS) for _ in range(nranks)]
    found = _flow(nranks, size, targets)
    tried = _choices(nranks, targets)
    if (1 + len(targets)) * nranks * size * ITEM <= LEAST_BYTES_PER_CORE * cores:
        tried = {Past.NONE}
    slowest = {past: max(one[past] for one in seconds) for past in Past}
    chosen: dict[int, Past] = {}

    def body(world: InprocWorld) -> None:
        rank = _Rank(world, size, seconds[world.rank])
        plan, past = rank.choose(found, cores)
        assert plan is found and (plan, past) in rank.made
        assert {past for past, _, _ in rank.fired} == (tried if len(tried) > 1 else set())
        for segment, memory in rank.memory.items():
            assert np.array_equal(memory, np.arange(size) + 100 * world.rank + segment)
        chosen[world.rank] = past

    run(nranks, body, deadline=60)
    (best,) = set(chosen.values())
    assert best in tried
    if len(tried) > 1:
        assert slowest[best] <= 1.1 * min(slowest[past] for past in tried)
        assert best is Past.NONE or slowest[best] < 0.95 * slowest[Past.NONE]


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.9, 1.0, 1.1]))
def test_a_difference_within_the_noise_changes_nothing(seed: int, share: float) -> None:
    """Rule: kinds that differ by less than a launch's noise are ordinary stores in every launch."""
    size, random = LEAST_BYTES_PER_CORE, np.random.default_rng(seed)

    def body(world: InprocWorld) -> None:
        rank = _Rank(world, size, {})
        # Every second round another program has a core, which costs more than the kinds differ by.
        rounds = dict.fromkeys(Past, 0)

        def timed(plan: Made, n: int) -> Floats:
            _, past = plan
            rounds[past] += 1
            slow = 1.5 if past is Past.ALL and rounds[past] % 2 else 1.0
            noise = 1 + 0.01 * random.standard_normal(n)
            return 1e-5 * noise * slow * (share if past is Past.ALL else 1.0)

        maker = Maker(_all_but_read, rank.find, rank.make, timed)
        _, past = with_best_stores(_flow(1, size, OWN), ITEM, 1, world, rank.known, maker)
        assert past is Past.NONE and max(rounds.values()) <= 5

    run(1, body, deadline=60)


@pytest.mark.parametrize(
    ("slow_from", "best", "timings"), [(1, Past.NONE, 1), (4, Past.NONE, 4), (5, Past.ALL, 5)]
)
def test_a_trial_ends_where_iterations_take_time_slices(
    slow_from: int, best: Past, timings: int
) -> None:
    """Rule: on a busy machine the trial has a limit; two rounds decide, fewer change nothing."""
    size, calls = LEAST_BYTES_PER_CORE, list[Past]()

    def timed(plan: Made, n: int) -> Floats:
        calls.append(plan[1])
        slow = 1.0 if len(calls) >= slow_from else 1e-5
        return np.full(n, slow * (0.5 if plan[1] is Past.ALL else 1.0))

    def body(world: InprocWorld) -> None:
        rank = _Rank(world, size, {})
        maker = Maker(_all_but_read, rank.find, rank.make, timed)
        assert with_best_stores(_flow(1, size, OWN), ITEM, 1, world, {}, maker)[1] is best
        assert len(calls) == timings

    run(1, body, deadline=60)


SHARE = st.sampled_from([1.0, 0.96, 0.9, 2.0])


@given(st.lists(st.tuples(SHARE, SHARE, SHARE), min_size=5, max_size=5))
def test_five_rounds_always_decide(rounds: list[tuple[float, float, float]]) -> None:
    """Rule: a kind is taken that is faster in every round than the one it replaces."""
    best = 0
    for kind in (1, 2):
        if all(one[kind] < 0.95 * one[best] for one in rounds):
            best = kind
    assert stores._best(rounds) == best
    assert {stores._best(rounds[:n]) for n in range(1, 5)} <= {None, best}


def test_of_a_large_plan_a_part_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: what is carried out to choose is bounded; the plan is the whole one all the same."""
    most = 32 << 20  # of memory that a test may take
    monkeypatch.setattr(stores, "MOST_BYTES_PER_CORE", most)
    size = most // ITEM
    found = _flow(1, size, OWN)

    def body(world: InprocWorld) -> None:
        rank = _Rank(world, size, {Past.NONE: 2.0, Past.OTHERS: 3.0, Past.ALL: 1.0})
        assert rank.choose(found, 1) == (found, Past.ALL)
        assert {tried for _, tried, _ in rank.fired} == {size // 2}
        assert all(2 * tried * ITEM * n <= 16 * most for _, tried, n in rank.fired)

    run(1, body, deadline=60)


def test_what_cannot_differ_is_not_tried_nor_anything_twice() -> None:
    """Rule: no trial where no target may be stored non-temporally; one for all plans of a kind."""
    size = LEAST_BYTES_PER_CORE
    found, again, other = (_flow(1, n, OWN) for n in (size, size, size + 1))

    def body(world: InprocWorld) -> None:
        rank = _Rank(world, size + 1, {Past.NONE: 2.0, Past.OTHERS: 3.0, Past.ALL: 1.0})
        assert rank.choose(found, 1, lambda _: set()) == (found, Past.NONE)
        assert not rank.fired
        assert rank.choose(found, 1) == (found, Past.ALL)
        tried = len(rank.fired)
        assert rank.choose(again, 1) == (again, Past.ALL)
        assert tried == len(rank.fired) > 0
        assert rank.choose(other, 1) == (other, Past.ALL)
        assert len(rank.fired) == 2 * tried

    run(1, body, deadline=60)


@pytest.mark.parametrize("past", Past)
def test_what_goes_past_is_among_what_may(past: Past) -> None:
    """Rule: nothing, what lies on other ranks, or everything, and never what may not."""
    able = {Place(0, 1, 0), Place(1, 1, 0), Place(1, 1, 9)}
    work = Work(1, 9, [*able, Place(2, 1, 0)], [Place(1, 0, 0)])
    wanted = {Past.NONE: set(), Past.OTHERS: {Place(0, 1, 0)}, Past.ALL: able}
    assert past.of(work, able) == wanted[past]


def test_memory_comes_back_when_a_rank_is_lost() -> None:
    """Rule: an error while it is tried leaves the buffers as they were."""
    size = LEAST_BYTES_PER_CORE

    def body(world: InprocWorld) -> None:
        rank = _Rank(world, size, dict.fromkeys(Past, 1.0))

        def lost(plan: Made, n: int) -> Floats:
            rank.timed(plan, n)
            raise RankFailure("rank 1 died")

        maker = Maker(_all_but_read, rank.find, rank.make, lost)
        with pytest.raises(RankFailure):
            with_best_stores(_flow(1, size, OWN), ITEM, 1, world, rank.known, maker)
        assert rank.fired
        assert np.array_equal(rank.memory[1], np.arange(size) + 1)

    run(1, body, deadline=60)
