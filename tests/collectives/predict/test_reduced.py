"""A million ranks: what a simulation leaves out changes nothing, and its estimate is held."""

from __future__ import annotations

import tracemalloc
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import Unsupported
from collectives.predict import effort, engines
from collectives.predict import simulation as simulator
from collectives.predict.effort import Effort, counted, extrapolate
from collectives.predict.flows import classes_of, flows_of, separate_classes, traffic_of
from collectives.predict.machine import Network
from collectives.predict.named import build_network
from collectives.predict.simulation import Simulation
from collectives.schedule.catalogue import draft, parameters, spec
from tests.collectives.cases import PAIRS
from tests.collectives.predict.test_simulation import drafted, uneven
from tests.command import collectives_main as main
from tests.conftest import examples, thorough

ALGORITHMS = ("ring", "torus", "hierarchical", "halving_doubling", "tree", "double_tree")
MILLION = 1 << 20


@st.composite
def machines(draw: Any, n: int) -> Network:
    """A machine with a place for every one of n ranks, of any kind and shape, alike or not."""
    side = draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0]))
    tapers = [t for t in (1, 2) if side % t == 0]
    text = draw(
        st.sampled_from(
            [
                f"ring:{n}",
                f"torus:{side}x{n // side}",
                f"full:{n}",
                f"fattree:{side}x{n // side}:taper={draw(st.sampled_from(tapers))}",
                f"nvswitch:gpus={side}:nodes={n // side}",
            ]
        )
    )
    made = build_network(text, n)
    return uneven(made, draw(st.integers(0, 99))) if draw(st.booleans()) else made


@examples(80)
@given(st.data(), st.sampled_from(PAIRS), st.integers(2, 40))
def test_a_reduced_simulation_is_the_full_one(data: Any, pair: tuple[str, str], n: int) -> None:
    """Classes of ranks, exchanges kept once and cycles of steps: each rank ends as without them."""
    collective, name = pair
    given_: dict[str, Any] = {}
    sides = [d for d in range(1, n + 1) if n % d == 0]
    for key in {"grid", "dims"} & parameters(collective, name).keys():
        side = data.draw(st.sampled_from(sides))
        given_[key] = (side, n // side)
    schedule = drafted(collective, name, n, **given_)
    if schedule is None:
        return
    made, what = data.draw(machines(n)), spec(collective)
    nbytes = data.draw(st.sampled_from([1e3, 1e6]))
    reduced = Simulation(schedule, what, made).run(nbytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "classes_of", separate_classes)
        patch.setattr(engines._Lockstep, "cycle", lambda *_: None)
        full = Simulation(schedule, what, made)
        assert len(np.unique(full.classes.rank)) == n
        wanted = full.run(nbytes)
    assert reduced.ranks == pytest.approx(wanted.ranks, rel=1e-9)
    assert reduced.link_bytes == pytest.approx(wanted.link_bytes, rel=1e-9)
    assert sum(reduced.parts.values()) == pytest.approx(wanted.seconds, rel=1e-9)


@examples(60)
@given(st.data(), st.sampled_from(PAIRS), st.integers(2, 24))
def test_classes_are_stable(data: Any, pair: tuple[str, str], n: int) -> None:
    """Messages of a class join the same classes, and ranks of a class have as many of each."""
    schedule = drafted(*pair, n)
    if schedule is None:
        return
    traffic = traffic_of(schedule)
    flows = flows_of(traffic, data.draw(machines(n)))
    classes = classes_of(flows, traffic)
    links = np.append(classes.link, -1)[flows.routes.table()]
    links.sort(axis=1)
    ends = np.column_stack([classes.rank[flows.src], classes.rank[flows.dst], links])
    for one in np.unique(classes.message):
        assert len(np.unique(ends[classes.message == one], axis=0)) == 1
    most = int(classes.message.max(initial=0)) + 1
    for end in (flows.src, flows.dst):
        counts = np.zeros((n, most), int)
        np.add.at(counts, (end, classes.message), 1)
        for one in np.unique(classes.rank):
            assert len(np.unique(counts[classes.rank == one], axis=0)) == 1


def test_cycles_of_steps_are_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring of 4,096 ranks with eight classes does not walk through its eight thousand steps."""
    taken = []
    take = engines._Walk._apply

    def noted(self: Any, move: Any, steps: int) -> None:
        taken.append(steps)
        take(self, move, steps)

    monkeypatch.setattr(engines._Walk, "_apply", noted)
    n = 4096
    machine = build_network("nvswitch:gpus=8", n)
    found = Simulation(draft("allreduce", "ring", n), spec("allreduce"), machine).run(n * 1e3)
    assert sum(taken) == 2 * (n - 1)
    assert len(taken) < 100
    # All wait for the slowest message of each step, once it has come round: that between nodes.
    step = 2 * 1.5e-6 + 1e3 / 50e9
    assert found.seconds == pytest.approx(2 * (n - 1) * step, rel=1e-9)


MACHINES = ("fattree", "torus", "nvswitch")
IN_TURN = [*zip(ALGORITHMS, cycle(MACHINES), strict=False)]
#: Every rank at its own pace, over long ways, under a tracer: 20 s.
SLOW = ("double_tree", "torus")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *IN_TURN,
        *thorough(*(one for one in product(ALGORITHMS, MACHINES) if one not in (*IN_TURN, SLOW))),
    ],
)
def test_memory_is_as_estimated(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """What is measured is within the factor that is stated of what a refusal goes by."""
    n = 4096
    estimates: list[float] = []
    monkeypatch.setattr(Effort, "check", lambda self, _: estimates.append(self.nbytes))
    schedule = draft("allreduce", name, n)
    tracemalloc.start()
    try:
        Simulation(schedule, spec("allreduce"), build_network(text, n)).run(1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / effort.FACTOR <= estimates[-1] <= peak * effort.FACTOR


@pytest.mark.parametrize("name", ALGORITHMS)
def test_counts_are_as_extrapolated(name: str) -> None:
    """The messages of 4,096 ranks, from those of a few."""
    about = extrapolate("allreduce", name, 4096, {})
    assert about is not None
    assert about == pytest.approx(counted(traffic_of(draft("allreduce", name, 4096))), rel=0.01)


def test_what_does_not_fit_is_refused_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All pairs of a million ranks: no schedule is built and no message is routed."""
    with pytest.raises(Unsupported, match="memory"):
        Effort(effort.MOST_BYTES * 2, 0).check("this")
    monkeypatch.setattr(simulator.NetworkPredictor, "simulation", pytest.fail)
    line = ["simulate", "direct", "-c", "alltoall", "-n", str(MILLION), "--machine", "fattree"]
    assert main(line) == 2
    assert "would take about" in capsys.readouterr().err
    assert main(["cost", "recursive_doubling+ring", "-n", str(MILLION)]) == 2


def test_predicting_step_by_step_is_refused_by_the_moves_of_all_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Steps of few kinds are counted once, predicted each; one collective's refusal is its own."""
    many = ["cost", "torus", "-n", "65536"]
    assert main([*many, "-c", "allreduce", "-b", "1M", "-e", "1M"]) == 2
    assert "6.7e+07 moves" in capsys.readouterr().err
    assert main(many) == 0
    said = capsys.readouterr()
    assert "allreduce on 65536 ranks" in said.out and "1020" in said.out
    assert main(["cost", "direct", "-n", "65536"]) == 0
    said = capsys.readouterr()
    assert "sendrecv on 65536 ranks" in said.out and "6.554e+04" in said.out
    assert "alltoall: direct on 65536 ranks has about" in said.err
