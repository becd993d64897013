"""What a map's sweep gives a simulated machine: rates of large messages and of additions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.links.measure import Measured, PairOptions, as_topology
from collectives.predict.machine import Network, Weights
from collectives.predict.maps import network_from_map
from collectives.predict.named import build_network
from collectives.predict.simulation import buffer_bytes, find_busiest
from collectives.schedule.catalogue import draft, spec
from tests.collectives.cases import PAIRS
from tests.collectives.predict.predicting import simulate
from tests.collectives.predict.test_fit import GAMMA, measured
from tests.collectives.predict.test_simulation import drafted
from topology.model.measured import Estimate, RankPlace, sizes, swept
from topology.model.topology import Topology
from topology.sources import own_json


def test_a_sweep_gives_the_rate_of_additions() -> None:
    """Rule: what a swap with additions takes beyond one without is γ; the ring takes half of it."""
    made = network_from_map(measured())
    assert made.gamma == pytest.approx(GAMMA)
    size = 1 << 20
    ring, what = draft("allreduce", "ring", 2), spec("allreduce")
    times = [simulate(ring, what, one, size).seconds for one in (made, made.adding(0.0))]
    # That map's links carry a byte a second, and times are exact to 1e-12: few digits are left.
    assert times[0] - times[1] == pytest.approx(made.gamma * size / 2, abs=1e-12 * times[0])
    assert 1e-12 * times[0] < made.gamma * size / 100


def test_without_a_sweep_additions_take_no_time() -> None:
    """Rule: a map that has no times of additions says nothing of them."""
    whole = measured()
    names = {f"{one.quantity}_{one.nbytes}" for one in swept(whole)}
    bare = replace(whole, pairs=tuple(p for p in whole.pairs if p.fact.name not in names))
    assert network_from_map(bare).gamma == 0.0


LATENCY, TRIP, SWAP = 1e-6, 1e-10, 1.6e-10


def _swept(slower: float = 1.0, largest: int = 1 << 20, **more: float) -> Topology:
    """Two ranks whose sweep has slower messages than their bandwidth says.

    ``slower``: by how much all bytes take longer from 64 KiB on, as beyond a cache. ``more``:
    seconds per byte of further quantities.
    """
    betas = {"trip": TRIP, "swap": SWAP, "add": SWAP + GAMMA, **more}
    samples = {
        ((0, 1), kind, m): [LATENCY + beta * m * (slower if m >= 1 << 16 else 1.0)] * 3
        for kind, beta in betas.items()
        for m in sizes(kind, largest)
    }
    values = {"latency": LATENCY, "bandwidth": 9e10, "bandwidth_both": 9e10}
    cells = {
        name: {way: Estimate(value, value, value) for way in ((0, 1), (1, 0))}
        for name, value in values.items()
    }
    places = tuple(RankPlace("here", str(rank), 0) for rank in range(2))
    return as_topology(Measured(places, False, cells, "an MPI"), PairOptions(), samples)


def _seconds(made: Network, collective: str, name: str, size: int) -> float:
    return simulate(draft(collective, name, 2), spec(collective), made, size).seconds


@given(st.integers(1 << 10, 1 << 30))
def test_a_sweep_gives_the_rates_of_what_was_just_written(half: int) -> None:
    """Rule: a lone message takes a trip, two that cross take a swap.

    What was measured of data that nobody had written since stays out of it.
    """
    made, size = network_from_map(_swept()), 2 * half
    assert _seconds(made, "broadcast", "flat", size) == pytest.approx(LATENCY + TRIP * size)
    ring = 2 * (LATENCY + SWAP * half) + GAMMA * half
    assert _seconds(made, "allreduce", "ring", size) == pytest.approx(ring)


@pytest.mark.parametrize(("size", "factor"), [(1 << 15, 1.0), (1 << 16, 3.0), (1 << 20, 3.0)])
def test_rates_are_those_of_buffers_as_large(size: int, factor: float) -> None:
    """Rule: halves of large buffers come from as far as the buffers, not from a fitting cache.

    An all-gather's ``in`` is half as large as its ``out`` here, and so counts three quarters.
    """
    made = network_from_map(_swept(factor))
    ring = 2 * LATENCY + factor * (SWAP + GAMMA / 2) * size
    assert _seconds(made, "allreduce", "ring", size) == pytest.approx(ring)
    assert buffer_bytes(spec("allreduce"), 2, size) == size
    assert buffer_bytes(spec("allgather"), 2, size) == 0.75 * size
    found = simulate(draft("allreduce", "ring", 2), spec("allreduce"), made, size)
    assert found.machine.links.rate.min() == pytest.approx(1 / (factor * TRIP))
    assert find_busiest(found, 1)[0].busy < 1.0


@given(st.integers(8, 1 << 21), st.integers(8, 1 << 21))
def test_between_measured_sizes_bytes_take_what_lies_between(one: int, other: int) -> None:
    """Rule: larger buffers are never faster between sizes, and the same past the ends."""
    made = network_from_map(_swept(3.0))
    low, high = (made.at(size).links.rate for size in sorted((one, other)))
    assert (low >= high * (1 - 1e-12)).all()
    assert (made.at(1 << 30).links.rate == made.at(1 << 20).links.rate).all()


def test_what_caches_spare() -> None:
    """Rule: what nobody has written goes as in a swap of such data, and sums that stay cost less.

    A ring of two sends its input, whose sums it sends on; a reduce-scatter's sums stay. Links carry
    the same bytes whatever these cost.
    """
    plain = network_from_map(_swept())
    still, sums = SWAP / 4, SWAP / 4 + GAMMA / 3
    made = network_from_map(_swept(still=still, sum=sums))
    size = 1 << 20
    times = {
        name: _seconds(made, name, "ring", size)
        for name in ("allreduce", "reduce_scatter", "allgather")
    }
    half = size / 2
    ring = 2 * LATENCY + half * (still + GAMMA + SWAP)
    assert times["allreduce"] == pytest.approx(ring)
    assert times["reduce_scatter"] == pytest.approx(LATENCY + half * sums)
    assert times["allgather"] == pytest.approx(LATENCY + half * still)
    carried = [
        simulate(draft("allreduce", "ring", 2), spec("allreduce"), one, size).link_bytes.tolist()
        for one in (plain, made)
    ]
    assert carried[0] == carried[1]


@pytest.mark.parametrize(
    "text", ["ring:6", "fattree:2x3:taper=1", "full:6:overhead_us=1:add_gbs=5"]
)
def test_caches_that_spare_nothing_change_nothing(text: str) -> None:
    """Rule: telling fresh data from other data splits no message and moves no byte."""
    made = build_network(text, 6)
    told = replace(made, weights=Weights(1.0 - 1e-12, 1.0))
    for collective, name in PAIRS:
        schedule = drafted(collective, name, 6)
        if schedule is not None:
            one, other = (simulate(schedule, spec(collective), m, 1e6) for m in (made, told))
            assert other.seconds == pytest.approx(one.seconds, rel=1e-9), (collective, name)
            assert other.link_bytes.tolist() == pytest.approx(one.link_bytes.tolist(), rel=1e-9)


def test_a_given_rate_goes_first(tmp_path: Path) -> None:
    """Rule: add_gbs replaces what the file says."""
    file = tmp_path / "map.json"
    file.write_text(own_json.dump(measured()))
    assert build_network(str(file), 2).gamma == pytest.approx(GAMMA)
    given_rate = build_network(f"{file}:add_gbs=4", 2)
    assert [given_rate.gamma, given_rate.at(1 << 20).gamma] == pytest.approx([1 / 4e9] * 2)
