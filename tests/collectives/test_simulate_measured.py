"""What a map's sweep gives a simulated machine: rates of large messages and of additions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.catalogue import draft, spec
from collectives.simulate.machines.maps import from_map
from collectives.simulate.machines.table import machine
from collectives.simulate.outcome import simulate
from topology.measure import Estimate
from topology.measure_mpi import Measured, Place, Settings
from topology.measured_map import as_topology
from topology.model import Topology
from topology.sources import own_json
from topology.sweep import sizes, swept

from .test_model_fit import GAMMA, measured


def test_a_sweep_gives_the_rate_of_additions() -> None:
    """Rule: what a swap with additions takes beyond one without is γ, and the ring takes half of it."""
    made = from_map(measured())
    assert made.gamma == pytest.approx(GAMMA)
    size = 1 << 20
    ring, what = draft("allreduce", "ring", 2), spec("allreduce")
    times = [simulate(ring, what, one, size).seconds for one in (made, replace(made, gamma=0.0))]
    # That map's links carry a byte a second, and times are exact to 1e-12: few digits are left.
    assert times[0] - times[1] == pytest.approx(made.gamma * size / 2, abs=1e-12 * times[0])
    assert 1e-12 * times[0] < made.gamma * size / 100


def test_without_a_sweep_additions_take_no_time() -> None:
    """Rule: a map that has no times of additions says nothing of them."""
    whole = measured()
    names = {f"{one.quantity}_{one.nbytes}" for one in swept(whole)}
    bare = replace(whole, pairs=tuple(p for p in whole.pairs if p.fact.name not in names))
    assert from_map(bare).gamma == 0.0


LATENCY, TRIP, SWAP = 1e-6, 1e-10, 1.6e-10


def _swept() -> Topology:
    """Two ranks whose sweep has slower messages than their bandwidth says; small ones are odd."""
    betas = {"trip": TRIP, "swap": SWAP, "add": SWAP + GAMMA}
    samples = {
        ((0, 1), kind, nbytes): [LATENCY + beta * nbytes * (1 if nbytes > 4096 else 9)] * 3
        for kind, beta in betas.items()
        for nbytes in sizes(kind, 1 << 20)
    }
    values = {"latency": LATENCY, "bandwidth": 9e10, "bandwidth_both": 9e10}
    cells = {
        name: {way: Estimate(value, value, value) for way in ((0, 1), (1, 0))}
        for name, value in values.items()
    }
    places = tuple(Place("here", str(rank), 0) for rank in range(2))
    return as_topology(Measured(places, cells, "an MPI"), Settings(), samples)


@given(st.integers(1 << 10, 1 << 30))
def test_a_sweep_gives_the_rates_of_what_was_just_written(half: int) -> None:
    """Rule: a lone message takes a trip, two that cross take a swap, at the rates of large ones.

    What was measured of data that nobody had written since stays out of it.
    """
    made, size = from_map(_swept()), 2 * half
    one = simulate(draft("broadcast", "flat", 2), spec("broadcast"), made, size)
    assert one.seconds == pytest.approx(LATENCY + TRIP * size)
    ring = simulate(draft("allreduce", "ring", 2), spec("allreduce"), made, size)
    assert ring.seconds == pytest.approx(2 * (LATENCY + SWAP * half) + GAMMA * half)


def test_a_given_rate_goes_first(tmp_path: Path) -> None:
    """Rule: add_gbs replaces what the file says."""
    file = tmp_path / "map.json"
    file.write_text(own_json.dump(measured()))
    assert machine(str(file), 2).gamma == pytest.approx(GAMMA)
    assert machine(f"{file}:add_gbs=4", 2).gamma == pytest.approx(1 / 4e9)
