"""Exchanges between pairs, and the sweep through sizes: what is asked is moved, timed and kept."""

from __future__ import annotations

import warnings
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import native
from bench.links.exchange import PATTERNS, WINDOW_BYTES, ExchangePattern, exchange, pattern
from bench.links.measure import PairTimer
from collectives.execution.inproc.transport import InprocTransport
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.shm.transport import ShmTransport
from collectives.schedule.verify import verify
from tests.conftest import Mpi, Run, under
from tests.slow_ends import HELD, slower_ends
from topology.model.measured import (
    BLOCKS,
    QUANTITIES,
    SMALLEST,
    SWEPT,
    facts,
    first,
    rounds,
    sizes,
    swept,
)
from topology.model.topology import Device, Fact, Kind, Topology
from topology.sources import own_json

MOVED = sorted({*QUANTITIES, *SWEPT} & {n for n, how in PATTERNS.items() if not how.adds})


@given(st.integers(2, 7), st.sampled_from(MOVED), st.sampled_from([1, 2, 8]), st.data())
def test_a_round_moves_what_it_claims(
    nranks: int, quantity: str, times: int, data: st.DataObject
) -> None:
    """Rule: in every round and either direction, each rank ends with the vector it is to get.

    After an even number of swaps (or one) ranks have both parts of their pair.
    """
    pairs = data.draw(st.sampled_from(rounds(nranks)))
    turned = [pair[::-1] if data.draw(st.booleans()) else pair for pair in pairs]
    nbytes = data.draw(st.sampled_from([1 << 16, 1 << 20]))
    how, times = pattern(quantity, nbytes), 1 if quantity in ("still", "first") else times
    schedule, spec = exchange(how, turned, nranks, times)
    if quantity in QUANTITIES or times > 1 or not how.chained:
        verify(schedule, spec)
    assert quantity in QUANTITIES or len(schedule.steps) == times


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


@pytest.mark.parametrize("quantity", sorted(PATTERNS))
@given(
    st.sampled_from([8, 16384, 1 << 20]), st.integers(1, 2), HELD, st.tuples(*[st.floats(0, 9)] * 2)
)
def test_no_end_comes_so_late_that_a_message_takes_no_time(
    quantity: str,
    nbytes: int,
    times: int,
    held: list[tuple[float, float]],
    began: tuple[float, float],
) -> None:
    """Rule: whenever an end loses its core, the slower end's clock has the time that a message
    travels, in every iteration of every pattern.

    A one-way message that nothing answered was in the receiver's socket before that looked: no time
    at either end, and 5,680 MB/s through a port of 12.5.
    """  # noqa: D205
    how = pattern(quantity, nbytes)
    schedule, _ = exchange(how, [(0, 1)], 2, times if how.chained else 1)
    assert all(took >= 1 - 1e-9 for took in slower_ends(schedule, 1.0, began, held))


@given(st.integers(8, 1 << 28), st.sampled_from(["bandwidth", "bandwidth_both"]))
def test_a_window_is_long_but_no_longer_than_osus(nbytes: int, quantity: str) -> None:
    """Rule: small messages fill a window of 256 KiB, 64 of them at most; large ones go alone."""
    n = pattern(quantity, nbytes).messages
    assert n == 1 or (n - 1) * nbytes < WINDOW_BYTES
    assert n * nbytes >= WINDOW_BYTES or n == 64


_FAILS = """
import sys
from bench.links.measure import PairTimer
from busbar.errors import ProbeError
from tests.command import topology_main as main

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


@pytest.mark.skipif(native.load() is None, reason=native.why_not() or "")
def test_plans_time_every_quantity() -> None:
    """Rule: our transports time all that is asked for; only the first of a pair has the numbers."""
    asked = sorted({*QUANTITIES, *SWEPT})

    def body(world: InprocWorld) -> dict[str, list[float]]:
        over = PairTimer(world, ShmTransport(world))
        found = {name: over.times(name, [(2, 0)], 64, 3) for name in asked}
        over.close()
        return found

    for rank, found in enumerate(run(3, body, deadline=60)):
        for times in found.values():
            assert len(times) == (3 if rank == 2 else 0)
            assert all(t > 0 for t in times)


def test_sums_that_grow_beyond_their_type_are_no_warning() -> None:
    """Rule: what is added and is of no interest is timed, however large it grows, and not said."""

    def body(world: InprocWorld) -> int:
        over = PairTimer(world, InprocTransport(world))
        return len(over.times("add", [(1, 0)], 64, 100))

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert run(2, body, deadline=60) == [0, 100]
    assert not said


@given(st.integers(SMALLEST, 1 << 30))
def test_sizes_double_up_to_the_largest(most: int) -> None:
    """Rule: 8, 16, 32 … and none beyond what was asked for; bursts end earlier."""
    found = sizes("trip", most)
    assert found[0] == 8 and found[-1] <= most < 2 * found[-1]
    assert all(b == 2 * a for a, b in pairwise(found))
    assert set(sizes("burst", most)) <= set(found) and sizes("first", most) == (8,)


def test_what_was_swept_reads_back() -> None:
    """Rule: through facts and the saved file every sample comes back; other facts are no matter."""
    samples = {
        ((0, 1), "trip", 8): [1e-6, 2e-6],
        ((0, 1), "still", 4096): [3e-6],
        ((0, 1), "first", 8): [9e-6],
    }
    pairs, machine = facts(samples, "measured")
    ranks = tuple(Device(f"RANK{i}", Kind.RANK, i) for i in range(2))
    odd = (Fact("first_of_all", 1, "x"),)
    whole = own_json.parse(own_json.dump(Topology(ranks, (), pairs, (*machine, *odd))))
    found = {(one.quantity, one.nbytes): one.seconds for one in swept(whole)}
    assert found == {("trip", 8): (1e-6, 2e-6), ("still", 4096): (3e-6,)}
    assert first(whole) == (9e-6,)


@pytest.mark.parametrize("value", ["fast", 1.0, (0.0, 1.0), (-1.0,), ("a",), (float("inf"),)])
def test_values_that_are_no_times_are_left_out(value: object) -> None:
    """Rule: a damaged file gives no sample rather than a wrong one."""
    pairs, _ = facts({((0, 1), "trip", 8): [1.0]}, "x")
    fact = Fact("trip_8", value, "x")  # type: ignore[arg-type]
    ranks = tuple(Device(f"RANK{i}", Kind.RANK, i) for i in range(2))
    pair = type(pairs[0])("RANK0", "RANK1", fact)
    assert swept(Topology(ranks, (), (pair,))) == []


def test_mpirun_sweeps(mpich: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: under mpirun every pair has every quantity at every size, in as many blocks as said."""
    saved = tmp_path / "swept.json"
    options = ("--sweep", "8", "--repetitions", "3", "--bytes", "1K", "-o", str(saved))
    done = run(*under(mpich, 2, "-m", "topology", "measure", *options))
    assert done.returncode == 0, done.stderr
    topology = own_json.parse(saved.read_text())
    found = {(one.a, one.b, one.quantity, one.nbytes) for one in swept(topology)}
    pairs = [("RANK0", "RANK1")]
    kinds = SWEPT.keys() - {"first"}
    assert found == {(*p, kind, m) for p in pairs for kind in kinds for m in sizes(kind, 8)}
    assert all(len(one.seconds) == BLOCKS for one in swept(topology))
    assert len(first(topology)) == BLOCKS * len(pairs)
