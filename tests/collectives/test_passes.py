"""Passes keep what a schedule does: proven after each of them, for drawn ranks and parameters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import ScheduleError, Unsupported
from collectives.schedule.catalogue import algorithms, build, draft, spec
from collectives.schedule.cost import cost
from collectives.schedule.passes import (
    beside,
    on_groups,
    pipeline,
    rechunk,
    refine,
    relabel,
    reverse,
    rotate,
    then,
)
from collectives.schedule.place import place
from collectives.schedule.schedule import Schedule
from collectives.schedule.verify import verify
from tests.conftest import examples

ALLREDUCE = ["ring", "tree", "halving_doubling", "double_tree", "sharded_ps", "one_shot"]
SCATTERS = ["ring", "bruck", "direct", "pat"]
quick = examples(40)
ranks = st.integers(1, 9)


def _proven(schedule: Schedule, collective: str, root: int = 0) -> None:
    what = spec(collective)
    for in_place in (False, True):
        verify(place(schedule, what, root), what, root=root, in_place=in_place)


def _tables(schedule: Schedule) -> list[list[list[int]]]:
    return [step.table.tolist() for step in schedule.all_moves]


@quick
@given(ranks, st.sampled_from(SCATTERS), st.sampled_from(SCATTERS))
def test_then_and_reverse(n: int, first: str, second: str) -> None:
    """A reduce-scatter, then any turned round, is an all-reduce; twice turned is as before."""
    scatter, other = draft("reduce_scatter", first, n), draft("reduce_scatter", second, n)
    _proven(then(scatter, reverse(other)), "allreduce")
    assert _tables(reverse(reverse(scatter), reduce=True)) == _tables(scatter)


@quick
@given(ranks, st.sampled_from(ALLREDUCE), st.randoms(use_true_random=False))
def test_relabel(n: int, name: str, random: object) -> None:
    """Ranks may change places in what treats all alike, and back again."""
    order = list(range(n))
    random.shuffle(order)  # type: ignore[attr-defined]
    schedule = draft("allreduce", name, n)
    turned = relabel(schedule, order)
    _proven(turned, "allreduce")
    back = np.argsort(order).tolist()
    assert _tables(relabel(turned, back)) == _tables(schedule)
    with pytest.raises(ScheduleError, match="no order"):
        relabel(schedule, [0] * (n + 1))


@quick
@given(ranks, st.lists(st.sampled_from(ALLREDUCE), min_size=1, max_size=3))
def test_beside(n: int, names: list[str]) -> None:
    """Side by side each works on its share; together on all, in the longest's steps."""
    parts = [draft("allreduce", name, n) for name in names]
    both = beside(*parts)
    _proven(both, "allreduce")
    assert len(both.steps) == max(len(part.steps) for part in parts)


@quick
@given(ranks, st.sampled_from(ALLREDUCE), st.integers(1, 5))
def test_pipeline(n: int, name: str, segments: int) -> None:
    """A pipeline of s segments takes d + s − 1 steps and moves the same total."""
    schedule = draft("allreduce", name, n)
    piped = pipeline(schedule, segments)
    _proven(piped, "allreduce")
    if schedule.steps:
        assert len(piped.steps) == len(schedule.steps) + segments - 1
    what = spec("allreduce")
    assert cost(piped, what).total == pytest.approx(cost(schedule, what).total)


@quick
@given(ranks, st.sampled_from(ALLREDUCE), st.integers(1, 4))
def test_refine(n: int, name: str, k: int) -> None:
    """Finer chunks change neither the meaning nor the cost."""
    schedule = draft("allreduce", name, n)
    _proven(refine(schedule, k), "allreduce")
    what = spec("allreduce")
    assert cost(refine(schedule, k), what) == cost(schedule, what)


@quick
@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from(ALLREDUCE), st.sampled_from(ALLREDUCE))
def test_on_groups(x: int, y: int, inner: str, outer: str) -> None:
    """All-reduce inside rows, then inside columns, is an all-reduce over all."""
    rows = [[i + x * j for i in range(x)] for j in range(y)]
    columns = [[i + x * j for j in range(y)] for i in range(x)]
    one, two = draft("allreduce", inner, x), draft("allreduce", outer, y)
    both = then(
        on_groups(one, rows, nranks=x * y, nchunks=one.nchunks),
        on_groups(two, columns, nranks=x * y, nchunks=two.nchunks),
    )
    _proven(both, "allreduce")


def test_groups_that_share_a_rank_are_refused() -> None:
    """A rank cannot play two parts at once."""
    with pytest.raises(ScheduleError, match="two groups"):
        on_groups(draft("allreduce", "ring", 2), [[0, 1], [1, 2]], nranks=3, nchunks=2)
    with pytest.raises(ScheduleError, match="must have 2 ranks"):
        on_groups(draft("allreduce", "ring", 2), [[0, 1, 2]], nranks=3, nchunks=2)


@quick
@given(ranks, st.data())
def test_rotate(n: int, data: st.DataObject) -> None:
    """One root's schedule serves every root, with chunks that belong to ranks or without."""
    root = data.draw(st.integers(0, n - 1))
    for name in algorithms("broadcast"):
        _proven(rotate(draft("broadcast", name, n), root), "broadcast", root)
    for name in algorithms("scatter"):
        _proven(rotate(draft("scatter", name, n), root, chunks=True), "scatter", root)
    with pytest.raises(Unsupported, match="not a rank"):
        rotate(draft("scatter", "flat", n), n)


@quick
@given(ranks, st.sampled_from(ALLREDUCE), st.randoms(use_true_random=False))
def test_rechunk(n: int, name: str, random: object) -> None:
    """Chunks may change their numbers in what treats all alike."""
    schedule = draft("allreduce", name, n)
    order = list(range(schedule.nchunks))
    random.shuffle(order)  # type: ignore[attr-defined]
    _proven(rechunk(schedule, order), "allreduce")


@quick
@given(ranks, st.sampled_from(algorithms("allreduce")))
def test_placing_twice_is_placing_once(n: int, name: str) -> None:
    """A placed schedule comes back as it is, and runs without scratch where all have everything."""
    try:
        schedule = build("allreduce", name, n)
    except Unsupported:
        return
    assert place(schedule, spec("allreduce")) is schedule
    assert schedule.scratch == 0


def test_schedules_that_do_not_fit_together_are_refused() -> None:
    """Rank counts must agree, and what is placed already cannot be continued."""
    one, two = draft("allreduce", "ring", 2), draft("allreduce", "ring", 3)
    for join in (then, beside):
        with pytest.raises(ScheduleError, match="rank counts"):
            join(one, two)
    with pytest.raises(ScheduleError, match="vector form"):
        then(build("allreduce", "ring", 2), one)
    with pytest.raises(ScheduleError, match="at least 1"):
        pipeline(one, 0)
