"""The simulator against closed forms, hand-computed cases, and a slow reading of the same rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import Unsupported
from collectives.predict.machine import Network
from collectives.predict.named import build_network
from collectives.predict.simulation import Simulation, SimulationResult, chunk_bytes
from collectives.schedule.catalogue import draft, spec
from collectives.schedule.moves import Buffer, Move, Slot
from collectives.schedule.schedule import Schedule
from tests.collectives.cases import PAIRS
from tests.collectives.predict.simulate_reference import reference
from tests.conftest import examples

SMALL = (
    "ring:5",
    "torus:3x2",
    "full:4",
    "fattree:2x3",
    "fattree:4x2:taper=2",
    "dragonfly:p=1:a=2:h=1:g=3",
    "nvswitch:gpus=3:nodes=2",
    "rail:gpus=2:nodes=2:pxn=0",
    "rail:gpus=2:nodes=3",
    "dgx1",
)
ALPHA, BETA, GAMMA = 3e-6, 1e-9, 0.25e-9


def uneven(made: Network, seed: int) -> Network:
    """The machine with a few different rates and latencies, so that little is alike."""
    random = np.random.default_rng(seed)
    size = len(made.links)
    links = replace(
        made.links,
        rate=random.choice([1e9, 2e9, 3e9], size),
        latency=random.choice([0.0, 1e-6, 2.5e-6], size),
    )
    return replace(made, links=links, overhead=0.3e-6, gamma=GAMMA)


@st.composite
def schedules(draw: Any, nranks: int) -> Schedule:
    """A few steps of a few moves between any ranks; nothing that a collective would want."""
    rank, chunk = st.integers(0, nranks - 1), st.integers(0, 7)

    def move(src: int, dst: int, one: int, two: int, count: int, reduce: bool) -> Move:
        a, b = Slot(Buffer.OUT, one, count), Slot(Buffer.OUT, two, count)
        return Move(src, dst, a, b, reduce)

    moves = st.builds(move, rank, rank, chunk, chunk, st.integers(1, 3), st.booleans())
    steps = draw(st.lists(st.lists(moves, max_size=6), min_size=1, max_size=4))
    return Schedule.of(nranks, 11, steps)


def times(schedule: Schedule, made: Network, chunk: float, **how: bool) -> SimulationResult:
    """A simulation with chunks of so many bytes: all-reduce's chunks are shares of its size."""
    found = Simulation(schedule, spec("allreduce"), made)
    return found.run(chunk * schedule.nchunks, **how)


@examples(150)
@given(st.data(), st.sampled_from(SMALL), st.integers(0, 1_000_000), st.booleans())
def test_any_schedule_takes_what_a_slow_reading_of_the_rules_says(
    data: Any, text: str, seed: int, alike: bool
) -> None:
    """Whatever the schedule and machine, every rank ends when the slow simulator says."""
    made = build_network(text, 4)
    made = replace(made, overhead=0.3e-6, gamma=GAMMA) if alike else uneven(made, seed)
    schedule = data.draw(schedules(min(made.nranks, 6)))
    wanted = reference(schedule, made, 1000.0)
    for engine in (True, False):
        found = times(schedule, made, 1000.0, steps_at_once=engine)
        assert found.ranks == pytest.approx(wanted, rel=1e-9, abs=1e-18)
        assert sum(found.parts.values()) == pytest.approx(found.seconds, rel=1e-9)


@pytest.mark.parametrize(("collective", "name"), PAIRS)
@pytest.mark.parametrize("text", ["torus:3x2", "fattree:4x2:taper=2"])
def test_every_algorithm_takes_what_the_slow_reading_says(
    collective: str, name: str, text: str
) -> None:
    """Every schedule of the catalogue, with and without symmetry to exploit."""
    made = build_network(text, 8)
    for n, one in (
        (min(8, made.nranks), replace(made, gamma=GAMMA)),
        (4, uneven(made, n_seed(name))),
    ):
        schedule = drafted(collective, name, n)
        if schedule is None:
            continue
        for engine in (True, False):
            what = spec(collective)
            found = Simulation(schedule, what, one).run(1e6, steps_at_once=engine)
            chunk = chunk_bytes(what, n, schedule.nchunks, 1e6)
            wanted = reference(schedule, one, chunk)
            assert found.ranks == pytest.approx(wanted, rel=1e-9)


def drafted(collective: str, name: str, n: int, **given: Any) -> Schedule | None:
    """A schedule in vector form, or None for a rank count that the algorithm refuses."""
    try:
        return draft(collective, name, n, **given)
    except Unsupported:
        return None


def n_seed(name: str) -> int:
    """A number for a name."""
    return sum(map(ord, name))
