"""Measuring over our transports: moves what it says, fails in one line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.links.exchange import PATTERNS, ExchangePattern, exchange
from collectives.schedule.verify import verify
from tests.conftest import Mpi, Run, under
from topology.measured.matrix import QUANTITIES, rounds


@given(st.integers(2, 7), st.sampled_from(sorted(QUANTITIES)), st.data())
def test_a_round_moves_what_it_claims(nranks: int, quantity: str, data: st.DataObject) -> None:
    """Rule: in every round and either direction, each rank ends with the vector it is to get."""
    pairs = data.draw(st.sampled_from(rounds(nranks)))
    turned = [pair[::-1] if data.draw(st.booleans()) else pair for pair in pairs]
    verify(*exchange(PATTERNS[quantity], turned, nranks, 8))


@given(st.integers(2, 7), st.booleans(), st.booleans(), st.integers(1, 5), st.data())
def test_a_window_arrives_whole_and_is_answered(
    nranks: int, both: bool, answered: bool, messages: int, data: st.DataObject
) -> None:
    """Rule: each message of a window arrives in a place of its own; one way answers come back."""
    pairs = data.draw(st.sampled_from(rounds(nranks)))
    how = ExchangePattern(both=both, messages=messages, answered=answered and not both)
    schedule, spec = exchange(how, pairs, nranks)
    verify(schedule, spec)
    assert len(schedule.steps) == 1 + how.answered
    wanted = {rank for pair in pairs for rank in (pair if both else pair[1:])}
    for rank in wanted:
        assert len(spec.outputs(nranks, rank, 0)) == messages


_FAILS = """
import sys
from bench.links.pairs import PairTimer
from busbar.errors import ProbeError
from topology.cli import main

times = PairTimer.times

def cut(self, quantity, *rest):
    if quantity == "bandwidth" and self._world.rank == 1:
        raise ProbeError("measure", "the cable was cut")
    return times(self, quantity, *rest)

PairTimer.times = cut
sys.exit(main(["measure"]))
"""


def test_a_rank_that_fails_ends_all(mpich: Mpi, run: Run) -> None:
    """Rule: when a transport fails on one rank half way, it is said and nobody waits for ever."""
    done = run(*under(mpich, 2, "-c", _FAILS))
    assert done.returncode == 2
    assert "rank 1: measure: the cable was cut" in done.stderr
    assert "Traceback" not in done.stderr
