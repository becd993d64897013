"""A schedule's fingerprint: equal for equal moves, different for different ones."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from collectives.schedule.catalogue import build
from collectives.schedule.digest import digest
from collectives.schedule.moves import Buffer, Move, Slot
from collectives.schedule.schedule import Schedule

RANKS = st.integers(0, 3)
SLOTS = st.builds(Slot, st.sampled_from(Buffer), st.integers(0, 3), st.just(1))
MOVES = st.builds(Move, RANKS, RANKS, SLOTS, SLOTS, st.booleans())
STEPS = st.lists(st.lists(MOVES, max_size=3), max_size=3)


def _steps(steps: Sequence[Sequence[Move]]) -> Schedule:
    return Schedule.of(4, 4, steps)


@given(STEPS, STEPS)
def test_one_digest_a_schedule(a: list[list[Move]], b: list[list[Move]]) -> None:
    """Rule: two schedules have one digest exactly when steps and moves are the same, in order."""
    assert (digest(_steps(a)) == digest(_steps(b))) == (a == b)


def test_every_shape_and_algorithm_has_its_own() -> None:
    """Rule: algorithms that move different things, and one on other ranks, are told apart."""
    built = [build("allreduce", name, n) for name in ("ring", "tree", "ps") for n in (4, 5)]
    assert len(set(map(digest, built))) == len(built)
