"""Which stores a plan gets: those that took less time, the same on every rank, and nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.errors import RankFailure
from collectives.shared.flow import Flow, Work
from collectives.shared.stores import (
    LEAST_BYTES_PER_CORE,
    MOST_BYTES_PER_CORE,
    with_better_stores,
)
from collectives.shared.tasks import Place
from collectives.transport import Array
from collectives.worlds.inproc import InprocWorld, run

Made = tuple[Flow, bool]
ITEM = 8


def _flow(nranks: int, size: int, in_place: bool) -> Flow:
    """Every rank copies so many elements of its own, or writes over what it has read."""
    works = tuple(
        Work(r, size, [Place(r, 0 if in_place else 1, 0)], [Place(r, 0, 0)]) for r in range(nranks)
    )
    return Flow(tuple((w,) for w in works), ((),) * nranks, (0,) * nranks, True, works, True)


class _Rank:
    """A rank whose plans write their memory full, and take the seconds that they are told."""

    def __init__(self, world: InprocWorld, size: int, seconds: tuple[float, float]) -> None:
        self.world, self.seconds = world, seconds
        self.memory = {s: np.arange(size) + 100 * world.rank + s for s in (0, 1)}
        self.made: list[Made] = []
        self.fired: list[tuple[int, int]] = []

    def find(self, place: Place) -> Array:
        assert place.rank == self.world.rank
        return self.memory[place.segment][place.start :]

    def make(self, found: Flow, past: bool) -> Made:
        self.made.append((found, past))
        return self.made[-1]

    def timed(self, plan: Made, n: int) -> list[float]:
        found, past = plan
        size = found.order[0].size
        self.memory[1][:size] = -1
        self.fired.append((size, n))
        return [self.seconds[past]] * n

    def choose(self, found: Flow, cores: int) -> Made:
        return with_better_stores(found, ITEM, cores, self.world, self.find, self.make, self.timed)


@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 400_000), st.booleans(), st.data())
def test_the_slowest_rank_decides_for_all(
    nranks: int, cores: int, size: int, in_place: bool, data: st.DataObject
) -> None:
    """Rule: all get the kind that takes clearly less, whole; memory is as before; little is not tried."""
    rates = st.sampled_from([1.0, 2.0, 3.0])
    seconds = [(data.draw(rates), data.draw(rates)) for _ in range(nranks)]
    found = _flow(nranks, size, in_place)
    tried = not in_place and 2 * nranks * size * ITEM > LEAST_BYTES_PER_CORE * cores
    slowest = [max(one[past] for one in seconds) for past in (False, True)]
    chosen: dict[int, bool] = {}

    def body(world: InprocWorld) -> None:
        rank = _Rank(world, size, seconds[world.rank])
        plan, past = rank.choose(found, cores)
        assert plan is found and (plan, past) in rank.made
        assert bool(rank.fired) == tried
        for segment, memory in rank.memory.items():
            assert np.array_equal(memory, np.arange(size) + 100 * world.rank + segment)
        chosen[world.rank] = past

    run(nranks, body, deadline=60)
    assert list(chosen.values()) == [tried and slowest[True] < slowest[False]] * nranks


def test_of_a_large_plan_a_part_is_tried() -> None:
    """Rule: what is carried out to choose is bounded, and the plan is the whole one all the same."""
    size = MOST_BYTES_PER_CORE // ITEM
    found = _flow(1, size, False)

    def body(world: InprocWorld) -> None:
        rank = _Rank(world, size, (2.0, 1.0))
        assert rank.choose(found, 1) == (found, True)
        assert {tried for tried, _ in rank.fired} == {size // 2}
        assert all(2 * tried * ITEM * n <= 16 * MOST_BYTES_PER_CORE for tried, n in rank.fired)

    run(1, body, deadline=60)


def test_memory_comes_back_when_a_rank_is_lost() -> None:
    """Rule: an error while it is tried leaves the buffers as they were."""
    size = LEAST_BYTES_PER_CORE

    def body(world: InprocWorld) -> None:
        rank = _Rank(world, size, (1.0, 1.0))

        def lost(plan: Made, n: int) -> list[float]:
            rank.timed(plan, n)
            raise RankFailure("rank 1 died")

        found, make = _flow(1, size, False), rank.make
        with pytest.raises(RankFailure):
            with_better_stores(found, ITEM, 1, world, rank.find, make, lost)
        assert rank.fired
        assert np.array_equal(rank.memory[1], np.arange(size) + 1)

    run(1, body, deadline=60)
