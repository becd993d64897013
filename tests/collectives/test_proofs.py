"""Every algorithm is proven, for every rank count, root and placement, before anything runs."""

from __future__ import annotations

import numpy as np
import pytest

from busbar.errors import ScheduleError, Unsupported
from collectives.schedule.catalogue import build, collectives, compositions, draft, spec
from collectives.schedule.moves import Buffer, Move, Slot, moves
from collectives.schedule.passes import on_groups, rechunk, relabel, reverse, then
from collectives.schedule.place import place
from collectives.schedule.schedule import Schedule, Step
from collectives.schedule.spec import Collective
from collectives.schedule.verify import verify
from tests.collectives.cases import PAIRS, RANKS, built, placements, roots

POWERS = {
    ("allgather", "doubling"),
    ("allreduce", "recursive_doubling"),
    ("allreduce", "swing"),
    ("hypercube", "doubling"),
    ("reduce_scatter", "halving"),
}


def _serves(collective: str, name: str, n: int) -> bool:
    """Whether an algorithm should serve a rank count."""
    if (collective, name) in POWERS:
        return n & (n - 1) == 0
    if name == "torus":
        return n <= 3 or any(n % d == 0 for d in range(2, n))
    return True


@pytest.mark.parametrize(("collective", "name"), PAIRS)
def test_every_case_is_proven(collective: str, name: str) -> None:
    """An algorithm serves each rank count it should, proven, for both roots and placements."""
    what = spec(collective)
    for n in RANKS:
        for root in roots(what, n):
            if not _serves(collective, name, n):
                with pytest.raises(Unsupported, match=str(n)):
                    build(collective, name, n, root=root)
                continue
            schedule = build(collective, name, n, root=root)
            for in_place in placements(what):
                verify(schedule, what, root=root, in_place=in_place)


@pytest.mark.parametrize(("collective", "name"), PAIRS)
def test_packing_keeps_the_proof_and_one_message_a_pair(collective: str, name: str) -> None:
    """Packed or not, a schedule does the same; packed, a pair exchanges one message a step."""
    what = spec(collective)
    for n in (2, 3, 8, 9):
        for pack in (0, 1):
            schedule = built(collective, name, n, root=n - 1 if what.rooted else 0, pack=pack)
            if schedule is None:
                continue
            for in_place in placements(what):
                verify(schedule, what, root=n - 1 if what.rooted else 0, in_place=in_place)
            for step in schedule.all_moves if pack else ():
                one = step.remote().joined()
                assert len(set(zip(one.src.tolist(), one.dst.tolist(), strict=True))) == len(one)


@pytest.mark.parametrize(
    ("collective", "name"), [(c, a) for c in collectives() for a in compositions(c)]
)
def test_every_composition_is_proven(collective: str, name: str) -> None:
    """Any reduce-scatter and any all-gather make an all-reduce, and so on: proven, not believed."""
    what = spec(collective)
    served = 0
    for n in (1, 4, 6):
        schedule = built(collective, name, n, root=n - 1)
        if schedule is not None:
            served += 1
            for in_place in placements(what):
                verify(schedule, what, root=n - 1, in_place=in_place)
    assert served >= 2


# Any grid that fits, any number of levels and of segments, whatever a step may carry.
PARAMETERS: list[tuple[str, dict[str, object], tuple[int, ...]]] = [
    *(("torus", {"grid": (x, 12 // x)}, (12,)) for x in (1, 2, 3, 4, 12)),
    *(
        ("hierarchical", {"dims": dims}, (24,))
        for dims in ((2, 3, 4), (4, 3, 2), (24,), (1, 24, 1), (2, 2, 2, 3))
    ),
    *(("chain", {"segments": k}, (1, 2, 3, 7, 8)) for k in (1, 2, 5)),
    *(("double_tree", {"segments": k}, (1, 2, 3, 7, 8)) for k in (1, 2, 5)),
    *(("pat", {"aggregate": k}, (1, 2, 3, 7, 8, 13, 16)) for k in (1, 2, 4, 64)),
]


@pytest.mark.parametrize(("name", "given", "ranks"), PARAMETERS, ids=str)
def test_parameters(name: str, given: dict[str, object], ranks: tuple[int, ...]) -> None:
    """An algorithm serves every value of its parameters that fits, and names one that does not."""
    for collective in (c for c, a in PAIRS if a == name):
        for n in ranks:
            verify(build(collective, name, n, **given), spec(collective))  # type: ignore[arg-type]
        if name in ("torus", "hierarchical"):
            with pytest.raises(Unsupported, match="x".join(map(str, *given.values()))):
                build(collective, name, 13, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("aggregate", [1, 2, 4, 64])
def test_pat_carries_no_more_than_it_may(aggregate: int) -> None:
    """No step of PAT carries more parts than ``aggregate``."""
    for n in (1, 2, 3, 7, 8, 13, 16):
        for step in draft("allgather", "pat", n, aggregate=aggregate).all_moves:
            assert np.bincount(step.src, minlength=n).max() <= aggregate


NOTHING = Collective(
    "nothing", "", lambda n: 0, lambda n, r, root: (), lambda n, r, root: (), lambda n: 0.0
)


def test_a_collective_of_no_parts() -> None:
    """No parts, no chunks, no moves: proven, as an empty thing should be."""
    verify(Schedule.of(3, 0, []), NOTHING)
    with pytest.raises(ScheduleError, match="do not fall"):
        verify(Schedule.of(3, 1, []), NOTHING)


IN0, OUT0, ROOM = Slot(Buffer.IN, 0), Slot(Buffer.OUT, 0), Slot(Buffer.SCRATCH, 0)


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        ([], "never written"),
        ([[Move(0, 0, IN0, OUT0), Move(1, 1, IN0, OUT0)]], "0 times instead of 1"),
        ([[Move(0, 2, IN0, OUT0)]], "no partner"),
        ([[Move(0, 1, Slot(Buffer.IN, 1), OUT0)]], "out of range"),
        ([[Move(0, 1, Slot(Buffer.IN, 0, 0), OUT0)]], "out of range"),
        ([[Move(0, 1, IN0, OUT0), Move(1, 1, IN0, OUT0)]], "plainly while another"),
        ([[Move(0, 1, OUT0, OUT0)]], "before anything was written"),
        ([[Move(0, 1, IN0, OUT0, True)]], "which holds nothing"),
        ([[Move(0, 1, IN0, IN0)]], "belongs to the caller"),
    ],
)
def test_what_verify_refuses_and_says(steps: list[list[Move]], complaint: str) -> None:
    """Each rule of a schedule that is broken is refused by its name."""
    with pytest.raises(ScheduleError, match=complaint):
        verify(Schedule.of(2, 1, steps, scratch=1), spec("allreduce"))


def test_a_contribution_twice_is_refused() -> None:
    """Counts, not sets: what is added twice is refused, but where a collective is idempotent."""
    local = [Move(r, r, IN0, OUT0) for r in range(2)]
    swap = [Move(0, 1, IN0, OUT0, True), Move(1, 0, IN0, OUT0, True)]
    twice = Schedule.of(2, 1, [local, swap, swap])
    with pytest.raises(ScheduleError, match="2 times instead of 1"):
        verify(twice, spec("allreduce"))
    verify(twice, spec("barrier"))


@pytest.mark.parametrize("doublings", [1, 15, 16, 17, 40])
def test_a_contribution_however_often_is_refused(doublings: int) -> None:
    """Counts never come round to 1: 2**16 and one more contributions are not one."""
    first = [Move(0, 0, IN0, OUT0), Move(0, 0, IN0, ROOM)]
    double, last = [Move(0, 0, ROOM, ROOM, True)], [Move(0, 0, ROOM, OUT0, True)]
    steps = [first, *[double] * doublings, last]
    with pytest.raises(ScheduleError, match="at least 2 times instead of 1"):
        verify(Schedule.of(1, 1, steps, scratch=1), spec("allreduce"))


def test_chunks_of_different_size_never_share_a_slot() -> None:
    """A slot has the size of the chunk it stands for, so no other chunk may be put there."""
    steps = [[Move(0, 0, Slot(Buffer.IN, 0), Slot(Buffer.OUT, 1))]]
    with pytest.raises(ScheduleError, match="stands for chunk 1"):
        verify(Schedule.of(1, 2, steps), spec("allreduce"))


@pytest.mark.parametrize("chunk", [-1, 2, 2**31 - 1])
def test_a_chunk_that_is_not_of_the_vector(chunk: int) -> None:
    """In vector form a slot out of range is refused by name, -1 too."""
    bad = Schedule(2, 2, (Step.fixed(moves(0, 1, chunk, reduce=True)),))
    what = spec("allreduce")
    for form in (bad, reverse(bad), then(bad, bad), on_groups(bad, [[0, 1]], nranks=2, nchunks=2)):
        with pytest.raises(
            ScheduleError, match=rf"step 0: rank [01] of 2: chunk {chunk}\+1 is out"
        ):
            place(form, what)
    with pytest.raises(ScheduleError, match=f"chunk {chunk} is out of range"):
        place(rechunk(bad, [1, 0]), what)
    with pytest.raises(ScheduleError, match="rank -1"):
        place(relabel(Schedule(2, 2, (Step.fixed(moves(0, -1, 0)),)), [1, 0]), what)


@pytest.mark.parametrize("nchunks", [0, -1])
def test_a_schedule_without_chunks_implements_nothing(nchunks: int) -> None:
    """A collective of parts needs chunks: nothing to check is no proof."""
    for schedule in (Schedule.of(2, nchunks, []), Schedule(2, nchunks, ())):
        with pytest.raises(ScheduleError, match="chunks do not fall on 1 parts"):
            verify(place(schedule, spec("allreduce")), spec("allreduce"))
    with pytest.raises(ScheduleError, match="moves nothing"):
        then(Schedule(2, nchunks, ()), draft("allreduce", "ring", 2))


def test_no_in_place_form_is_refused() -> None:
    """All-to-all has no in-place form, as in nccl-tests."""
    with pytest.raises(Unsupported, match="in-place"):
        verify(build("alltoall", "direct", 2), spec("alltoall"), in_place=True)
