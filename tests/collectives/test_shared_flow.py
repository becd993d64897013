"""Who waits for whom: any order that the waits allow gives the right result, and none deadlocks."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import Unsupported
from collectives.execution.lower import lower
from collectives.execution.shm.dependences import ENTRY, DependenceGraph, dependence_graph
from collectives.execution.shm.tasks import (
    STAGE,
    Place,
    PlacedProgram,
    Work,
    in_scratch,
    ordered,
    placed_program_json,
    read_placed_program,
)
from collectives.execution.shm.worksharing import PIECE_BYTES, shared_out
from collectives.execution.transport import LibraryCall
from collectives.schedule.catalogue import algorithms, build, collectives, spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from tests.collectives.cases import expected, inputs
from tests.collectives.executing import sent

PAIRS = [(c, a) for c in collectives() for a in algorithms(c) if c not in ("barrier", "alltoallv")]
GARBAGE = -(10**9)
SEGMENTS = {Buffer.IN: (0, 0), Buffer.OUT: (1, 0), Buffer.SCRATCH: (2, 0)}


def _flow(
    collective: str, name: str, nranks: int, elements: int, in_place: bool
) -> DependenceGraph | None:
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
    placed = [PlacedProgram(program.rank, program.steps, places) for program in programs]
    return dependence_graph(ordered(placed), nranks, in_scratch(placed))


class _Machine:
    """Ranks that do their passes whenever their waits allow, in an order drawn by chance."""

    def __init__(
        self, work: DependenceGraph, given: list[np.ndarray], room: int, in_place: bool
    ) -> None:
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
def test_two_shot_adds_and_stores_in_one_pass(nranks: int, in_place: bool) -> None:
    """Rule: a rank that adds a chunk and then stores it to all others does both in one pass."""
    found = _flow("allreduce", "sharded_ps", nranks, 8 * nranks, in_place)
    assert found is not None and found.aligned and not found.crossing
    for works in found.works:
        (work,) = works
        ranks = list(range(nranks))
        assert sorted(p.rank for p in work.sources) == ranks
        assert sorted(p.rank for p in work.targets) == ranks


@given(st.sampled_from(PAIRS), st.integers(1, 9), st.integers(0, 40), st.booleans())
def test_each_rank_does_its_own_moves(
    pair: tuple[str, str], nranks: int, elements: int, in_place: bool
) -> None:
    """Rule: a pass loads and stores for its own rank; pairs move the schedule's bytes."""
    in_place = in_place and pair[0] == "allreduce"
    found = _flow(*pair, nranks, elements, in_place)
    if found is None:
        return
    moved: Counter[tuple[int, int]] = Counter()
    for work in found.order:
        far_sources = [p for p in work.sources if p.rank != work.rank]
        far_targets = [p for p in work.targets if p.rank != work.rank]
        for place in far_sources:
            moved[place.rank, work.rank] += work.size
        for place in far_targets:
            moved[work.rank, place.rank] += work.size
    wanted = sent(build(*pair, nranks), spec(pair[0]), elements, in_place=in_place)
    assert +moved == wanted


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_programs_are_told_as_they_are(pair: tuple[str, str]) -> None:
    """Rule: what a rank reads of another's program is what that one wrote, type for type."""
    schedule = build(*pair, 8)
    layout = Layout.of(schedule, spec(pair[0]))
    for rank in range(8):
        program = lower(schedule, layout, rank, 5)
        wrote = PlacedProgram(rank, list(program.steps), SEGMENTS)
        sent = json.dumps(placed_program_json(program, SEGMENTS))
        assert repr(read_placed_program(json.loads(sent))) == repr(wrote)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_put_makes_nobody_busier(pair: tuple[str, str]) -> None:
    """Rule: not all messages are got only if the busiest rank, or all together, then move less."""
    found = _flow(*pair, 8, 64, False)
    assert found is not None
    schedule = build(*pair, 8)
    layout = Layout.of(schedule, spec(pair[0]))
    programs = [lower(schedule, layout, r, 64) for r in range(8)]
    got = [0] * 8
    for task in ordered([PlacedProgram(p.rank, p.steps, SEGMENTS) for p in programs]):
        places = len(task.targets) + len(task.sources) + 2 * task.late
        got[task.rank] += places * task.size
    moved = [sum(w.moved for w in works) for works in found.works]
    assert max(moved) <= max(got) or sum(moved) < sum(got)


def _shared(what: str, nranks: int, elements: int, in_place: bool) -> DependenceGraph:
    """The passes of a collective whose work belongs to no rank, of elements of 8 bytes."""
    call = LibraryCall(spec(what), {}, None, elements)
    return shared_out(call, [[(int(in_place), 0), (1, 0)]] * nranks, 8)


@pytest.mark.parametrize("elements", [40, 100_003])
@pytest.mark.parametrize("what", [c for c in collectives() if c not in ("barrier", "alltoallv")])
def test_shares_are_of_like_work_and_leave_nothing_out(what: str, elements: int) -> None:
    """Rule: what anyone wants is written once, by one process; shares differ by a few pages."""
    found = _shared(what, 5, elements, False)
    layout = Layout(spec(what), 5, spec(what).parts(5))
    written = Counter(
        (place.rank, element)
        for work in found.order
        for place in work.targets
        for element in (place.start, place.start + work.size - 1)
    )
    assert set(written.values()) <= {1, 2}  # a piece of one element begins and ends there
    for rank in range(5):
        mine = sum(w.size for w in found.order for p in w.targets if p.rank == rank)
        assert mine == layout.elements(rank, Buffer.OUT, elements)
    moved = [sum(w.moved for w in works) for works in found.works]
    widest = max(len(w.places) for w in found.order)
    assert max(moved) - min(moved) <= 2 * widest * PIECE_BYTES // 8 + max(moved) // 5


@given(st.sampled_from(collectives()), st.integers(1, 9), st.integers(0, 40), st.randoms())
def test_shared_work_in_any_order_is_right(
    what: str, nranks: int, elements: int, chance: random.Random
) -> None:
    """Rule: whoever does a share, and whichever comes first, each rank has what it wants."""
    if what in ("barrier", "alltoallv") or spec(what).idempotent:
        return
    in_place = what == "allreduce" and chance.random() < 0.5
    found = _shared(what, nranks, elements, in_place)
    layout = Layout(spec(what), nranks, spec(what).parts(nranks))
    given_ = inputs(layout, elements, np.dtype(np.int64), False)
    room = max(1, elements * max(1, layout.nchunks))
    machine = _Machine(found, given_, room, in_place)
    for rank in range(nranks):
        machine.enter(rank)
    works = list(found.order)
    chance.shuffle(works)
    for work in works:
        machine.carry_out(work)
    for rank, want in enumerate(expected(layout, elements, given_, np.add)):
        assert np.array_equal(machine.memory[rank, 1][: len(want)], want), f"{what} rank {rank}"


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_waits_are_few_and_for_lower_stages(pair: tuple[str, str]) -> None:
    """Rule: nobody waits for itself, nor twice for what it knows already.

    In rounds (window + stage) waits are for earlier rounds, unless staging forbids it.
    """
    found = _flow(*pair, 8, 64, False)
    assert found is not None
    for rank, works in enumerate(found.works):
        known = [ENTRY - 1] * 8
        for waits in (*(w.waits for w in works), found.exits[rank]):
            for peer, task in waits:
                assert peer != rank and task > known[peer]
                known[peer] = task
        stages = [work.stage for work in works]
        assert stages == sorted(stages)
        for work in works:
            for peer, task in (wait for wait in work.waits if wait[1] != ENTRY):
                above = work.stage - found.works[peer][task].stage
                assert above == 0 if any(found.slots) else above > 0


def test_threads_find_the_types_of_messages_ready() -> None:
    """Rule: importing prepares the types; threads that are the first to use one may crash."""
    code = """
        from collectives.execution.program import Local, Receive, Send, Span
        import collectives.execution.shm.tasks
        assert all("__msgspec_cache__" in vars(one) for one in (Local, Receive, Send, Span))
    """
    subprocess.run([sys.executable, "-c", "if True:" + code], check=True)
