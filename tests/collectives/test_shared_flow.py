"""Who waits for whom: any order that the waits allow gives the right result, and none deadlocks."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.catalogue import algorithms, build, collectives, spec
from collectives.errors import Unsupported
from collectives.layout import Layout
from collectives.lower import lower
from collectives.moves import Buffer
from collectives.shared.flow import ENTRY, STAGE, Flow, Work, flow
from collectives.shared.pool import PIECE_BYTES, apart, can_pool, chains, parts
from collectives.shared.tasks import Place, encode, ordered
from tests.collectives.cases import expected, inputs

PAIRS = [(c, a) for c in collectives() for a in algorithms(c) if c not in ("barrier", "alltoallv")]
GARBAGE = -(10**9)
SEGMENTS = {Buffer.IN: (0, 0), Buffer.OUT: (1, 0), Buffer.SCRATCH: (2, 0)}


def _flow(collective: str, name: str, nranks: int, elements: int, in_place: bool) -> Flow | None:
    """The flow of a whole-vector collective in place shares a segment, like its memory."""
    try:
        schedule = build(collective, name, nranks)
    except Unsupported:
        return None
    layout = Layout.of(schedule, spec(collective))
    places: Mapping[Buffer, tuple[int, int]] = SEGMENTS
    if in_place:
        places = {**SEGMENTS, Buffer.IN: SEGMENTS[Buffer.OUT]}
    programs = [lower(schedule, layout, r, elements, in_place=in_place) for r in range(nranks)]
    return flow(ordered([encode(program, places) for program in programs]), nranks)


class _Machine:
    """Ranks that do their passes whenever their waits allow, in an order drawn by chance."""

    def __init__(self, work: Flow, given: list[np.ndarray], room: int, in_place: bool) -> None:
        self.work, self.given, self.source = work, given, 1 if in_place else 0
        ranks = len(given)
        # Before a rank enters, and after it has left, its memory holds what nobody may read.
        self.memory = {(r, s): np.full(room, GARBAGE) for r in range(ranks) for s in (0, 1, 2)}
        self.stage: dict[Place, np.ndarray] = {}
        self.done = [ENTRY - 1] * ranks
        self.results: dict[int, np.ndarray] = {}

    def ready(self, rank: int) -> bool:
        if self.done[rank] < ENTRY:
            return True
        number = self.done[rank] + 1
        works = self.work.works[rank]
        waits = works[number].waits if number < len(works) else self.work.exits[rank]
        return all(self.done[peer] >= task for peer, task in waits)

    def view(self, place: Place, size: int) -> np.ndarray:
        if place.segment == STAGE:
            return self.stage.setdefault(place, np.empty(size, np.int64))[:size]
        return self.memory[place.rank, place.segment][place.start : place.start + size]

    def enter(self, rank: int) -> None:
        mine = self.given[rank]
        self.memory[rank, self.source][: len(mine)] = mine

    def carry_out(self, one: Work) -> None:
        if one.sources[0].segment != STAGE and one.targets[0].segment == STAGE:
            self.stage.pop(one.targets[0], None)
        total = sum(self.view(p, one.size).copy() for p in one.sources)
        for place in one.targets:
            self.view(place, one.size)[...] = total

    def advance(self, rank: int) -> None:
        number, works = self.done[rank] + 1, self.work.works[rank]
        if number == ENTRY:
            self.enter(rank)
        elif number < len(works):
            self.carry_out(works[number])
        else:
            self.results[rank] = self.memory[rank, 1].copy()
            for segment in (0, 1, 2):
                self.memory[rank, segment][:] = GARBAGE
        self.done[rank] = number

    def run(self, chance: random.Random) -> dict[int, np.ndarray]:
        ranks = range(len(self.given))
        while len(self.results) < len(self.given):
            able = [r for r in ranks if r not in self.results and self.ready(r)]
            assert able, f"deadlock after {self.done}"
            self.advance(chance.choice(able))
        return self.results


def _machine(
    pair: tuple[str, str], nranks: int, elements: int, in_place: bool
) -> tuple[_Machine, list[np.ndarray]] | None:
    """Ranks before they enter, and what each should end with; none where no sum tells it."""
    what = spec(pair[0])
    in_place = in_place and what.name == "allreduce"
    found = _flow(*pair, nranks, elements, in_place)
    if found is None or what.idempotent:
        return None
    layout = Layout.of(build(*pair, nranks), what)
    given_ = inputs(layout, elements, np.dtype(np.int64), False)
    room = max(1, 2 * elements * max(1, what.parts(nranks)))
    wanted = expected(layout, elements, given_, np.add)
    return _Machine(found, given_, room, in_place), wanted


@given(st.sampled_from(PAIRS), st.integers(1, 9), st.integers(0, 40), st.booleans(), st.randoms())
def test_any_order_that_the_waits_allow_is_right(
    pair: tuple[str, str], nranks: int, elements: int, in_place: bool, chance: random.Random
) -> None:
    """Rule: no wait is missing (memory may change once its owner left) and none is circular."""
    case = _machine(pair, nranks, elements, in_place)
    if case is None:
        return
    machine, wanted = case
    results = machine.run(chance)
    for rank, want in enumerate(wanted):
        assert np.array_equal(results[rank][: len(want)], want), f"{pair} rank {rank}"


@pytest.mark.parametrize("nranks", [2, 3, 8])
@pytest.mark.parametrize("in_place", [False, True])
def test_two_shot_is_one_pass(nranks: int, in_place: bool) -> None:
    """Rule: all sources of a share are read and all its targets written in one pass, unwindowed."""
    found = _flow("allreduce", "sharded_ps", nranks, 8 * nranks, in_place)
    assert found is not None and found.aligned and not found.crossing
    for works in found.works:
        (only,) = works
        assert len(only.sources) == len(only.targets) == nranks


def _touched(works: tuple[Work, ...], written: bool) -> set[Place]:
    """Places that passes write, or read or write, but for what is put aside."""
    every = (p for w in works for p in (w.targets if written else (*w.targets, *w.sources)))
    return {place for place in every if place.segment != STAGE}


@pytest.mark.parametrize("nranks", [3, 8])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_chains_share_nothing_that_is_written(pair: tuple[str, str], nranks: int) -> None:
    """Rule: every pass is in one chain, in order, and no chain touches what another one writes."""
    found = _flow(*pair, nranks, 8 * nranks, False)
    if found is None or not can_pool(found):
        return
    every = chains(found)
    order = {id(work): i for i, work in enumerate(found.order)}
    assert sorted(order[id(w)] for works in every for w in works) == list(range(len(found.order)))
    for works in every:
        numbers = [order[id(work)] for work in works]
        assert numbers == sorted(numbers)
        others = [one for one in every if one is not works]
        if found.aligned:
            written = _touched(works, True)
            assert not any(written & _touched(one, False) for one in others)


def test_what_is_pooled() -> None:
    """Rule: where nobody could leave before all have entered, and only there."""
    for pair in (("allreduce", "ring"), ("allreduce", "tree"), ("allgather", "direct")):
        found = _flow(*pair, 8, 64, False)
        assert found is not None and can_pool(found), pair
    for pair in (("broadcast", "binomial"), ("gather", "flat"), ("reduce", "chain")):
        found = _flow(*pair, 8, 64, False)
        assert found is not None and not can_pool(found), pair


@pytest.mark.parametrize("elements", [8 * 5, 100_003])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_parts_are_of_like_work_and_leave_nothing_out(pair: tuple[str, str], elements: int) -> None:
    """Rule: the pieces of a chain are all its elements, once each; parts differ by few pages."""
    found = _flow(*pair, 5, elements, False)
    if found is None or not can_pool(found):
        return
    grain = PIECE_BYTES // 4
    every = parts(found, grain)
    assert len(every) == 5
    for works in chains(found):
        pieces = sorted((p.start, p.size) for part in every for p in part if p.works == works)
        at = 0
        for start, size in pieces:
            assert start == at and size > 0
            at += size
        assert at == max(work.size for work in works)
    if found.aligned:
        work = [
            sum(p.size * sum(len(w.sources) + len(w.targets) for w in p.works) for p in part)
            for part in every
        ]
        widest = max(sum(len(w.sources) + len(w.targets) for w in p) for p in chains(found))
        assert max(work) - min(work) <= 2 * widest * grain + max(work) // 5


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_what_a_model_is_given_moves_the_same(pair: tuple[str, str]) -> None:
    """Rule: passes put apart for a model move every element once, and wait for entering alone."""
    found = _flow(*pair, 5, 35, False)
    if found is None or not can_pool(found):
        return
    alone, fine = apart(found)
    assert not alone.crossing
    assert sum(w.moved for w in alone.order) == fine * sum(w.moved for w in found.order)


@given(st.sampled_from(PAIRS), st.integers(2, 9), st.integers(0, 40), st.booleans(), st.randoms())
def test_chains_in_any_order_are_right(
    pair: tuple[str, str], nranks: int, elements: int, in_place: bool, chance: random.Random
) -> None:
    """Rule: whoever does a chain, and whichever comes first, the result is the schedule's."""
    case = _machine(pair, nranks, elements, in_place)
    if case is None or not can_pool(case[0].work):
        return
    machine, wanted = case
    every = chains(machine.work)
    chance.shuffle(every)
    for rank in range(nranks):
        machine.enter(rank)
    for works in every:
        for work in works:
            machine.carry_out(work)
    for rank, want in enumerate(wanted):
        assert np.array_equal(machine.memory[rank, 1][: len(want)], want), f"{pair} rank {rank}"


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_the_waits_are_few(pair: tuple[str, str]) -> None:
    """Rule: nobody waits for itself, nor twice for what it knows already."""
    found = _flow(*pair, 8, 64, False)
    assert found is not None
    for rank, works in enumerate(found.works):
        known = [ENTRY - 1] * 8
        for waits in (*(w.waits for w in works), found.exits[rank]):
            for peer, task in waits:
                assert peer != rank and task > known[peer]
                known[peer] = task


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_stages_lie_above_what_they_wait_for(pair: tuple[str, str]) -> None:
    """Rule: in rounds (window + stage) each wait is for an earlier round, unless staging forbids it."""
    found = _flow(*pair, 8, 64, False)
    assert found is not None
    for works in found.works:
        stages = [work.stage for work in works]
        assert stages == sorted(stages)
        for work in works:
            for peer, task in work.waits:
                if task != ENTRY:
                    above = work.stage - found.works[peer][task].stage
                    assert above == 0 if any(found.slots) else above > 0
