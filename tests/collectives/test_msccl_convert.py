"""MSCCL algorithms as schedules and back: the same moves, the same results, on real memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import Unsupported
from collectives.formats.convert import _Converter, convert, proven
from collectives.formats.export import export
from collectives.formats.load import build, load
from collectives.formats.msccl import ThreadblockStep, parse, write
from collectives.formats.proof import COLLECTIVES, chunk_layout, prove
from collectives.schedule.catalogue import spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer, Move
from collectives.schedule.schedule import Schedule
from tests.collectives.cases import PAIRS, Case, built, computes, placements, roots
from tests.collectives.msccl_files import EACH_FILE, OWN, two
from tests.collectives.test_execution import _all
from tests.conftest import examples

KNOWN = [(c, a) for c, a in PAIRS if c in COLLECTIVES]
WAYS = [{"staged": s, "copied": c} for s in (False, True) for c in (False, True)]


def messages(schedule: Schedule) -> tuple[dict[tuple[int, int], list[Move]], Counter[Move]]:
    """What each pair of ranks exchanges, chunk by chunk in its order, and moves inside ranks."""
    pairs: dict[tuple[int, int], list[Move]] = defaultdict(list)
    inside: Counter[Move] = Counter()
    for step in schedule.all_moves:
        for move in step.unit():
            if move.src == move.dst:
                inside[move] += 1
            else:
                pairs[move.src, move.dst].append(move)
    return dict(pairs), inside


@pytest.mark.parametrize(("collective", "name"), KNOWN)
def test_exports_are_proven_and_come_back_the_same(collective: str, name: str) -> None:
    """Every schedule that we export is proven as MSCCL, and its import makes the same moves."""
    what = spec(collective)
    for n in (1, 2, 3, 4, 8):
        for root in roots(what, n):
            schedule = built(collective, name, n, root=root)
            if schedule is None:
                continue
            algorithm = parse(write(export(schedule, Layout.of(schedule, what, root))))
            proof = prove(algorithm)
            assert proof.notes == ()
            assert proof.placements == placements(what)
            assert messages(convert(algorithm, proof)) == messages(schedule)


@examples(40)
@given(
    st.sampled_from(KNOWN),
    st.integers(1, 9),
    st.integers(1, 4),
    st.sampled_from([None, True, False]),
    st.booleans(),
)
def test_any_placement_and_channels(
    pair: tuple[str, str], n: int, channels: int, in_place: bool | None, last: bool
) -> None:
    """For any placement and number of channels an export is proven and moves what it should."""
    what = spec(pair[0])
    root = n - 1 if last and what.rooted else 0
    schedule = built(*pair, n, root=root)
    if schedule is None or (in_place and not what.in_place):
        return
    made = export(
        schedule, Layout.of(schedule, what, root), in_place=in_place, channels=channels, proto="LL"
    )
    pairs, _ = messages(schedule)
    proof = prove(made)
    back, _ = messages(convert(made, proof))
    if in_place is not True:
        assert {k: Counter(v) for k, v in back.items()} == {k: Counter(v) for k, v in pairs.items()}
    assert {k: len(v) for k, v in back.items()} == {k: len(v) for k, v in pairs.items()}


@EACH_FILE
@pytest.mark.parametrize("ways", WAYS, ids=str)
def test_schedules_of_files_by_every_way(path: Path, ways: dict[str, bool]) -> None:
    """A file is proven without reservations; converted in any way our own proof accepts it, too."""
    algorithm = parse(path.read_bytes(), str(path))
    proof = prove(algorithm)
    assert proof.notes == ()
    proven(_Converter(algorithm, proof, **ways).run(), proof.layout)


@EACH_FILE
def test_schedules_of_files_run(path: Path) -> None:
    """An imported schedule gives what NumPy gives among threads, in every placement.

    Writing and reading it loses nothing that the runtime looks at.
    """
    algorithm = parse(path.read_bytes(), str(path))
    assert parse(write(algorithm)) == algorithm
    what = chunk_layout(algorithm).spec
    schedule = load(path, what.name, algorithm.ngpus)
    cases = [
        Case(what, path.stem, schedule, 0, in_place, elements, "float", "sum")
        for in_place in placements(what)
        for elements in ((131,) if len(schedule.all_moves[0]) > 500 else (1, 131))
    ]
    _all(algorithm.ngpus, cases)


def test_for_something_else() -> None:
    """A file in the place of an algorithm must be for that collective and rank count."""
    path = OWN["ar_hier_4"]
    with pytest.raises(Unsupported, match="it is for collective allreduce, not allgather"):
        build("allgather", str(path), 4)
    with pytest.raises(Unsupported, match="it is for ranks 4, not 8"):
        build("allreduce", str(path), 8)
    with pytest.raises(Unsupported, match="no parameter 'segments'"):
        build("allreduce", str(path), 4, segments=2)


def _naively_right(schedule: Schedule, where: Layout) -> bool:
    each = placements(where.spec)
    return all(computes(schedule, where.spec, where.root, in_place=here) for here in each)


def test_scratch_that_is_exchanged() -> None:
    """Two gpus exchange one scratch slot, which no step of ours can: it goes by way of a copy."""
    steps = [
        [
            ThreadblockStep(0, "cpy", "i", 1 - rank, "s", 0, 1),
            ThreadblockStep(1, "s", "s", 0, "s", 0, 1),
            # The slot is used again before the message need have come.
            ThreadblockStep(2, "r", "s", 0, "s", 0, 1),
            ThreadblockStep(3, "cpy", "s", 0, "o", 1 - rank, 1),
            ThreadblockStep(4, "cpy", "i", rank, "o", rank, 1),
        ]
        for rank in range(2)
    ]
    algorithm = two(*steps, coll="alltoall", chunks=2)
    proof = prove(algorithm)
    for ways in WAYS:
        made = proven(_Converter(algorithm, proof, **ways).run(), proof.layout)
        assert _naively_right(made, proof.layout)


def _kept(steps: list[ThreadblockStep]) -> Schedule:
    """The schedule of two gpus with the same steps: it is right, and one chunk is copied."""
    algorithm = two(steps, steps, s_chunks=0)
    made = convert(algorithm)
    assert made.scratch == 1
    assert _naively_right(made, chunk_layout(algorithm))
    return made


def test_a_slot_that_both_ends_overwrite() -> None:
    """Of two plain writes that wait for each other's reads one needs a copy, and gets it."""
    one = [
        ThreadblockStep(0, "s", "i", 0, "o", 0, 1),
        ThreadblockStep(1, "rrc", "i", 0, "o", 0, 1),
        # Both send their sum, and each is overwritten by the other's, which is the same sum.
        ThreadblockStep(2, "s", "o", 0, "o", 0, 1),
        ThreadblockStep(3, "r", "o", 0, "o", 0, 1),
    ]
    algorithm = two(one, one, s_chunks=0)
    assert _Converter(algorithm, prove(algorithm), staged=False, copied=True).run().scratch == 1
    _kept(one)


def test_inputs_that_outputs_overwrite_in_place() -> None:
    """A file for out of place that reads an input late also runs in place: the input is kept."""
    steps = [
        ThreadblockStep(0, "s", "i", 0, "o", 0, 1),
        ThreadblockStep(1, "r", "o", 0, "o", 0, 1),
        ThreadblockStep(2, "re", "i", 0, "o", 0, 1),
    ]
    copies = _kept(steps).all_moves[0]
    assert set(copies.src_buffer.tolist()) == {int(Buffer.IN)}
