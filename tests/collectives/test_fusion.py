"""Fused passes leave the same result, written by the same ranks, and move each message once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.execution.lower import lower
from collectives.execution.shm.dependences import dependence_graph
from collectives.execution.shm.fusion import fuse
from collectives.execution.shm.tasks import Place, PlacedProgram, Task, Work, in_scratch, ordered
from collectives.schedule.catalogue import build, parse, spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.verify import verify

SIZE = 2  # elements of a place
SCRATCH = 2  # the segment that is lost after an iteration
Memory = dict[tuple[int, int], np.ndarray]


def _is_scratch(place: Place) -> bool:
    return place.segment == SCRATCH


@st.composite
def _passes(draw: st.DrawFn) -> list[Work]:
    """Passes in order, each copying or adding into places of any rank; at least one end is its own.

    Few places, so that they are often written, read and handed on again.
    """
    ranks, places = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    place = st.builds(
        lambda rank, segment, at: Place(rank, segment, at * SIZE),
        st.integers(0, ranks - 1),
        st.integers(0, SCRATCH),
        st.integers(0, places - 1),
    )
    works = []
    for _ in range(draw(st.integers(0, 12))):
        target = draw(place)
        sources = draw(st.lists(place, min_size=1, max_size=2, unique=True))
        if sources == [target]:
            continue
        far = {p.rank for p in sources} - {target.rank}
        rank = draw(st.sampled_from([target.rank, *far])) if len(far) == 1 else target.rank
        if len(sources) > 1:
            rank = target.rank
        works.append(Work(rank, SIZE, [target], sources))
    return works


def _start(works: Sequence[Work]) -> Memory:
    """Every place with values of its own."""
    segments = {p[:2] for work in works for p in work.places}
    return {
        key: np.arange(8, dtype=np.int64) + 100 * number
        for number, key in enumerate(sorted(segments))
    }


def _carry_out(works: Sequence[Work], memory: Memory) -> Memory:
    """Do passes one after the other; each reads its sources before it writes."""

    def view(place: Place, size: int) -> np.ndarray:
        return memory[place[:2]][place.start : place.start + size]

    for work in works:
        total = sum(view(p, work.size).copy() for p in work.sources)
        for place in work.targets:
            view(place, work.size)[...] = total
    return memory


def _written(works: Sequence[Work], kept: bool) -> set[tuple[int, Place]]:
    """Who writes which place; without a rank's own scratch unless ``kept``."""
    return {
        (work.rank, place)
        for work in works
        for place in work.targets
        if kept or not (_is_scratch(place) and place.rank == work.rank)
    }


def _messages(works: Sequence[Work]) -> Counter[tuple[int, int]]:
    """Elements that pass between the memories of two ranks, as the executor counts them."""
    found: Counter[tuple[int, int]] = Counter()
    for work in works:
        for place in work.sources:
            found[place.rank, work.rank] += work.size * (place.rank != work.rank)
        for place in work.targets:
            found[work.rank, place.rank] += work.size * (place.rank != work.rank)
    return +found


@given(_passes())
def test_fused_passes_do_what_the_others_did(works: list[Work]) -> None:
    """Rule: the same memory, written by the same ranks; a rank's unread scratch may be left out.

    What passes from rank to rank does not change, and no pass moves more.
    """
    fused = fuse(works, _is_scratch)
    before, after = _carry_out(works, _start(works)), _carry_out(fused, _start(works))
    for key, values in before.items():
        if key[1] != SCRATCH:
            assert np.array_equal(values, after[key])
    assert _written(fused, kept=False) == _written(works, kept=False)
    assert _written(fused, kept=True) <= _written(works, kept=True)
    assert _messages(fused) == _messages(works)
    assert sum(w.moved for w in fused) <= sum(w.moved for w in works)
    kept = fuse(works, lambda _: False)
    assert _written(kept, kept=True) == _written(works, kept=True)


@given(_passes(), st.randoms())
def test_fused_passes_in_any_order_that_the_waits_allow(
    works: list[Work], chance: random.Random
) -> None:
    """Rule: the graph of fused passes has every wait that they need, and none is circular."""
    nranks = 1 + max((p.rank for work in works for p in work.places), default=0)
    tasks = [
        Task(work.targets[0].rank, (step, 2), SIZE, tuple(work.targets), tuple(work.sources))
        for step, work in enumerate(works)
    ]
    graph = dependence_graph(tasks, nranks, _is_scratch)
    memory, done = _start(works), [0] * nranks
    while any(done[r] < len(graph.works[r]) for r in range(nranks)):
        ready = [
            rank
            for rank, mine in enumerate(graph.works)
            if done[rank] < len(mine)
            and all(done[peer] > task for peer, task in mine[done[rank]].waits)
        ]
        assert ready, "passes wait for each other in a circle"
        rank = chance.choice(ready)
        _carry_out([graph.works[rank][done[rank]]], memory)
        done[rank] += 1
    for key, values in _carry_out(works, _start(works)).items():
        if key[1] != SCRATCH:
            assert np.array_equal(values, memory[key])


def _moved(collective: str, name: str, nranks: int, fused: bool, in_place: bool = False) -> float:
    """Bytes that all ranks load and store, in vectors' lengths."""
    name, given = parse(name)
    schedule = build(collective, name, nranks, **given)
    layout = Layout.of(schedule, spec(collective))
    places = {buffer: (int(buffer), 0) for buffer in Buffer}
    if in_place:
        places[Buffer.IN] = places[Buffer.OUT]
    elements = 16 * nranks
    programs = [
        PlacedProgram(p.rank, p.steps, places)
        for p in (lower(schedule, layout, r, elements, in_place=in_place) for r in range(nranks))
    ]
    scratch = in_scratch(programs) if fused else None
    graph = dependence_graph(ordered(programs), nranks, scratch)
    return sum(work.moved for work in graph.order) / elements


@pytest.mark.parametrize(
    ("collective", "name", "nranks", "before", "after"),
    [
        ("allreduce", "sharded_ps", 2, 5, 4),
        ("allreduce", "sharded_ps", 4, 9, 8),
        ("allreduce", "ring", 2, 5, 4),
        ("allreduce", "ring", 4, 15, 13),
        ("allreduce", "halving_doubling", 4, 15, 13),
        ("allreduce", "double_tree", 4, 12, 11),
        ("allreduce", "tree", 4, 15, 15),
        ("broadcast", "sharded", 4, 8, 5),
        ("broadcast", "scatter_allgather", 4, 8, 6.25),
        ("broadcast", "chain", 4, 8, 7),
        ("reduce", "sharded", 4, 6.5, 5),
        ("reduce", "rabenseifner", 4, 11, 9.5),
        ("reduce", "chain", 4, 9, 9),
    ],
)
def test_the_bytes_of_the_table_in_the_docs(
    collective: str, name: str, nranks: int, before: float, after: float
) -> None:
    """Rule: what fusion saves is what docs/shared-memory.md says."""
    assert _moved(collective, name, nranks, False) == before
    assert _moved(collective, name, nranks, True) == after


@pytest.mark.parametrize("nranks", [2, 4])
def test_a_broadcast_in_place_moves_no_more_than_it_must(nranks: int) -> None:
    """Rule: unless the root is sent what it has, the vector is read once and written n-1 times."""
    root = nranks - 1
    verify(build("broadcast", "sharded", nranks, root=root, back=0), spec("broadcast"), root=root)
    assert _moved("broadcast", "sharded:back=0", nranks, True, in_place=True) == nranks
    assert _moved("broadcast", "sharded", nranks, True, in_place=True) == nranks + 1 - 1 / nranks
