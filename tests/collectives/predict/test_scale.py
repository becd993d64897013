"""What makes simulations of many ranks quick, against what is slow and certain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.predict import engines
from collectives.predict import simulation as simulator
from collectives.predict.fluid import compute_fair_rates
from collectives.predict.machine import NO_LINK, RankRoutes
from collectives.predict.named import build_network
from collectives.predict.simulation import Simulation
from collectives.schedule.catalogue import draft, spec
from tests.collectives.cases import PAIRS
from tests.collectives.predict.predicting import simulate
from tests.collectives.predict.test_simulation import drafted, uneven
from tests.conftest import examples, thorough

SIDES = st.lists(st.integers(1, 6), min_size=1, max_size=3)


def links_of(routes: RankRoutes) -> list[list[int]]:
    """The links of every route in their order."""
    return [[link for link in row if link != NO_LINK] for row in routes.table().tolist()]


@examples(80)
@given(SIDES, st.integers(0, 10**6), st.integers(0, 40), st.booleans())
def test_circles_answer_as_a_table_does(sides: list[int], seed: int, count: int, few: bool) -> None:
    """Sums, minima and loads over stretches of circles are those over each link, also of some."""
    made = build_network("torus:" + "x".join(map(str, sides)), 1)
    random = np.random.default_rng(seed)
    src, dst = random.integers(0, made.nranks, (2, count))
    routes = made.routes(src, dst)
    table = RankRoutes(made.routes(src, dst).table(), len(made.links))
    for _ in range(2):
        n = routes.nlinks
        values = random.choice([1.0, 2.5, 4.0], n) if few else random.random(n)
        weights, tags = random.random(count), random.integers(0, 1 << 63, count, np.uint64)
        assert links_of(routes) == links_of(table)
        assert routes.total(values) == pytest.approx(table.total(values), rel=1e-12)
        assert (routes.least(values) == table.least(values)).all()
        assert routes.loads(weights) == pytest.approx(table.loads(weights), rel=1e-12, abs=1e-15)
        part = slice(count // 3, count // 2)
        some = routes.loads(weights[part], part)
        assert some == pytest.approx(table.loads(weights[part], part), rel=1e-12, abs=1e-15)
        assert (routes.gather(tags) == table.gather(tags)).all()
        colours = random.integers(0, 1 << 63, n, np.uint64)
        assert (routes.hashes(colours) == table.hashes(colours)).all()
        # And again with some of the links alone, by new numbers.
        keep = random.random(n) < 0.6
        number = np.where(keep, np.cumsum(keep) - 1, -1).astype(np.int32)
        routes, table = (of.renumbered(number, int(keep.sum())) for of in (routes, table))


def test_equal_ways_have_equal_latencies() -> None:
    """To the last bit, wherever on the ring they are: symmetry is found by equal numbers."""
    made = build_network("ring:1000:latency_us=0.3", 1000)
    rank = np.arange(1000)
    routes = made.routes(rank, (rank + 317) % 1000)
    assert len(np.unique(routes.total(made.links.latency))) == 1
    assert len(np.unique(routes.loads(np.full(1000, 0.1))[:1000])) == 1


@pytest.mark.parametrize("n", [64, 700])
def test_all_pairs_of_a_ring(n: int) -> None:
    """Without latency each upward link (the busier way) has 1 + 2 + … + n/2 parts at one rate."""
    made = build_network(f"ring:{n}:latency_us=0:gbs=10", n)
    found = simulate(draft("alltoall", "direct", n), spec("alltoall"), made, n * 1e6)
    parts = n // 2 * (n // 2 + 1) / 2
    assert found.seconds == pytest.approx(parts * 1e6 / 10e9, rel=1e-9)
    assert found.link_bytes[:n] == pytest.approx(parts * 1e6, rel=1e-9)


@pytest.mark.parametrize("text", ["ring:40", "torus:5x8", "fattree:5x8:taper=5"])
def test_links_inside_others_hold_nobody_up(text: str) -> None:
    """What goes to one rank shares the last link alone, and takes what the other engine says."""
    made = replace(build_network(text, 40), gamma=0.0)
    simulation = Simulation(draft("gather", "flat", 40), spec("gather"), made)
    assert max(stage.links.shape[1] for stage in simulation._stages) == 1
    routes = made.routes(np.arange(1, 40), np.zeros(39, np.int64)).table()
    links = np.where(routes < 0, len(made.links), routes).astype(np.int64)
    rates = compute_fair_rates(links, np.ones(links.shape), np.full(39, np.inf), made.links.rate)
    into = {int(route[route < len(made.links)][-1]) for route in links}
    carried = sum(float(made.links.rate[link]) for link in into)
    assert rates.sum() == pytest.approx(carried, rel=1e-9)


def test_steps_that_come_again_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring over a fat tree: once its slowest links set the pace, all steps are alike."""
    computed = []
    slow = engines._Lockstep._move

    def counted(self: Any, number: int, later: Any) -> Any:
        computed.append(number)
        return slow(self, number, later)

    monkeypatch.setattr(engines._Lockstep, "_move", counted)
    n = 1024
    made = build_network("fattree:16x8x8:taper=2", n)
    simulate(draft("allreduce", "ring", n), spec("allreduce"), made, 64 << 20)
    assert len(computed) < n // 4


CROWDED = ("torus:4x3", "fattree:4x3:taper=4", "dragonfly:p=2:a=2:h=1:g=3")


@pytest.mark.parametrize(
    ("text", "slack"),
    [
        *zip(CROWDED, (0.1, 0.02, 0.02), strict=True),
        *thorough(*zip(CROWDED, (0.02, 0.1, 0.1), strict=True)),
    ],
)
def test_a_slack_bounds_the_error(text: str, slack: float) -> None:
    """Every algorithm: the time is within the error that is stated of the exact one."""
    made = build_network(text, 12) if slack < 0.1 else uneven(build_network(text, 12), 3)
    for collective, name in PAIRS:
        schedule = drafted(collective, name, 12)
        if schedule is None:
            continue
        simulation = Simulation(schedule, spec(collective), made)
        exact, near = (simulation.run(4e6, steps_at_once=False, slack=s) for s in (0.0, slack))
        assert (exact.slack, near.slack) == (0.0, slack)
        off = abs(near.seconds / exact.seconds - 1)
        assert off <= simulator.ERROR, (collective, name)
        assert sum(near.parts.values()) == pytest.approx(near.seconds, rel=1e-9)
        busy = near.link_bytes / near.machine.links.rate
        assert busy.max(initial=0.0) <= near.seconds * (1 + 1e-9), "more than a link can"
        assert made.gamma or near.parts["adding"] == 0.0, "additions take no time here"


def test_a_slack_is_chosen_where_there_is_much_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps at once need no slack; the command tells of one, and --exact turns it off."""
    from tests.command import collectives_main as main

    simulation = Simulation(
        draft("alltoall", "pairwise", 30),
        spec("alltoall"),
        build_network("dragonfly:p=2:a=4:h=2:g=4", 30),
    )
    assert simulation.run(1e7).slack == 0.0
    exact = simulation.run(1e7).seconds
    monkeypatch.setattr(simulator, "MOST_EXACT", 0)
    near = simulation.run(1e7)
    assert near.slack == 0.1
    assert near.seconds == pytest.approx(exact, rel=0.1)
    ring = Simulation(
        draft("allreduce", "ring", 30), spec("allreduce"), build_network("ring:30", 30)
    )
    assert ring.run(1e7).slack == 0.0
    line = ["simulate", "pairwise", "-n", "30", "--machine", "dragonfly:p=2:a=4:h=2:g=4"]
    assert main(line) == 0
    assert "within 10%" in capsys.readouterr().err
    assert main([*line, "--exact"]) == 0
    assert capsys.readouterr().err == ""
