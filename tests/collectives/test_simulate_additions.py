"""A map's sweep gives a simulated machine its rate of additions; a word on the command line goes first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collectives.catalogue import draft, spec
from collectives.simulate.machines.maps import from_map
from collectives.simulate.machines.table import machine
from collectives.simulate.outcome import simulate
from topology.sources import own_json
from topology.sweep import swept

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


def test_a_given_rate_goes_first(tmp_path: Path) -> None:
    """Rule: add_gbs replaces what the file says."""
    file = tmp_path / "map.json"
    file.write_text(own_json.dump(measured()))
    assert machine(str(file), 2).gamma == pytest.approx(GAMMA)
    assert machine(f"{file}:add_gbs=4", 2).gamma == pytest.approx(1 / 4e9)
