"""Fits of link costs: what goes in comes out, nothing is negative, files are taken or refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.links.measure import Measured, PairOptions, as_topology
from busbar.errors import Unsupported
from collectives.predict.fit import MOST_EDGES, Fit, dump_fit, fit_curve, load_fit, read_fit
from collectives.predict.machine import Costs, Curve, LinkCosts
from collectives.predict.maps import fit_map, fit_maps
from tests.conftest import examples
from topology.model.measured import BURST, SWEPT, Estimate, RankPlace, sizes
from topology.model.topology import Topology
from topology.sources import own_json

SIZES = [8 << i for i in range(20)]
ALPHAS, BETAS = st.floats(1e-8, 1e-3), st.floats(1e-12, 1e-8)
TIMES = st.lists(st.floats(1e-6, 1e-2), min_size=6, max_size=22)
CALM = examples(30)


@CALM
@given(ALPHAS, BETAS)
def test_a_line_is_found_again(alpha: float, beta: float) -> None:
    """Rule: through points of one line the fit is that line, in one range."""
    curve = fit_curve(SIZES, [[alpha + beta * m for m in SIZES]] * 3)
    assert curve(SIZES) == pytest.approx([alpha + beta * m for m in SIZES], rel=1e-6, abs=0)
    assert curve.edges == ()


@pytest.mark.parametrize("edges", [1, 2, 3, 4])
def test_a_change_of_protocol_is_found_where_it_is(edges: int) -> None:
    """Rule: jumps in noisy times become cuts between the right sizes, and no others."""
    noise = np.random.default_rng(edges)
    cuts = [4 * (k + 1) for k in range(edges)]
    steps = [sum(i >= cut for cut in cuts) for i in range(len(SIZES))]
    truth = np.array([4.0**k * (1e-6 + 1e-10 * m) for k, m in zip(steps, SIZES, strict=True)])
    times = truth * noise.uniform(0.97, 1.03, (7, len(SIZES)))
    curve = fit_curve(SIZES, times)
    assert [int(e) for e in curve.edges] == [int((SIZES[c - 1] * SIZES[c]) ** 0.5) for c in cuts]
    assert np.abs(curve(SIZES) / truth - 1).max() < 0.06


@CALM
@given(TIMES, st.integers(1, 4))
def test_curves_never_fall_and_nothing_is_negative(times: list[float], blocks: int) -> None:
    """Rule: whatever the times: α, β >= 0, at most four cuts, more bytes never take less time."""
    m = SIZES[: len(times)] if len(times) <= len(SIZES) else [8 << i for i in range(len(times))]
    curve = fit_curve(m, [times] * blocks)
    assert min(*curve.alpha, *curve.beta) >= 0
    assert len(curve.edges) <= MOST_EDGES
    values = curve(np.geomspace(1, 4 * m[-1], 500))
    assert (np.diff(values) >= -1e-12 * values[1:]).all()
    assert curve(0) == 0


@CALM
@given(TIMES, st.floats(1e-3, 1e3))
def test_the_error_is_relative(times: list[float], unit: float) -> None:
    """Rule: times in another unit give the same curve in that unit: sizes weigh the same."""
    m = [8 << i for i in range(len(times))]
    one, other = fit_curve(m, [times]), fit_curve(m, [[unit * t for t in times]])
    assert other(m) == pytest.approx(unit * one(m), rel=1e-6, abs=0)


@CALM
@given(TIMES)
def test_no_line_is_better(times: list[float]) -> None:
    """Rule: of all lines with α, β >= 0 the one found has the least squared relative error."""
    m, t = np.array([8.0 * 2**i for i in range(len(times))]), np.array(times)
    curve = fit_curve(m, [times], most=0)
    alpha, beta = curve.alpha[0], curve.beta[0]

    def error(a: float, b: float) -> float:
        return float((((a + b * m) / t - 1) ** 2).sum())

    best = error(alpha, beta)
    for a in (0.0, alpha * 0.9, alpha * 1.1, float(t.min())):
        for b in (0.0, beta * 0.9, beta * 1.1, float((t / m).min())):
            assert best <= error(a, b) * (1 + 1e-6) + 1e-9


def test_intervals_hold_the_figures_and_are_seeded() -> None:
    """Rule: bootstrap intervals enclose the fit, widen with the noise, and repeat exactly."""
    noise = np.random.default_rng(3)
    truth = np.array([1e-6 + 1e-10 * m for m in SIZES])
    calm, wild = (truth * noise.uniform(1 - w, 1 + w, (9, len(SIZES))) for w in (0.01, 0.2))
    curves = [fit_curve(SIZES, calm), fit_curve(SIZES, wild)]
    assert fit_curve(SIZES, calm) == curves[0]
    for curve in curves:
        for value, (low, high) in zip((*curve.alpha, *curve.beta), curve.intervals, strict=True):
            assert low <= value * (1 + 1e-9) and value <= high * (1 + 1e-9)
    widths = [c.intervals[0][1] - c.intervals[0][0] for c in curves]
    assert widths[0] < widths[1]


def test_blocks_may_have_gaps() -> None:
    """Rule: a size that only some blocks have is used, one that none has is left out."""
    times = np.array([[1e-6 + 1e-10 * m for m in SIZES]] * 3)
    times[0, ::2], times[:, 5] = np.nan, np.nan
    assert fit_curve(SIZES, times)(SIZES) == pytest.approx([1e-6 + 1e-10 * m for m in SIZES])
    with pytest.raises(ValueError, match="two sizes"):
        fit_curve([8, 16], [[1e-6, np.nan]])


# -- from measured maps

SEND, GAMMA = (2e-6, 1e-10), 3e-10


def _seconds(quantity: str, nbytes: int, factor: float) -> float:
    alpha, beta = SEND
    whole = alpha + beta * nbytes
    extra = {"add": GAMMA * nbytes, "burst": (BURST - 1) * whole / 2, "first": 5e-6}
    return factor * (whole + extra.get(quantity, 0.0))


def measured(ranks: int = 2, factor: float = 1.0, transport: str = "mpi") -> Topology:
    """A map whose sweep follows the line above, times ``factor``."""
    pairs = [(a, b) for a in range(ranks) for b in range(a + 1, ranks)]
    samples = {
        (pair, quantity, nbytes): [_seconds(quantity, nbytes, factor)] * 3
        for pair in pairs
        for quantity in SWEPT
        for nbytes in sizes(quantity, 1 << 20)
    }
    both = {way: Estimate(1.0, 1.0, 1.0) for a, b in pairs for way in ((a, b), (b, a))}
    cells = dict.fromkeys(("latency", "bandwidth", "bandwidth_both"), both)
    places = tuple(RankPlace("here", str(rank), 0) for rank in range(ranks))
    return as_topology(
        Measured(places, False, cells, "an MPI"), PairOptions(transport=transport), samples
    )


def test_a_sweep_becomes_costs() -> None:
    """Rule: from the file that measure writes come α, β, γ, the gap of bursts and the start."""
    topology = own_json.parse(own_json.dump(measured()))
    costs = fit_map(topology)
    (link,) = costs.links.values()
    m = np.array([64.0, 1 << 20])
    alone = np.array([SEND[0] + SEND[1] * x for x in m])
    both = np.ones(2, bool)
    assert link.alone(m, both) == pytest.approx(alone)
    assert link.added(m) == pytest.approx(GAMMA * m, rel=1e-4)
    assert link.further(m, both) == pytest.approx(alone / 2)
    assert costs.start == pytest.approx(5e-6)
    assert (costs.ranks, costs.transport, costs.sources) == (2, "mpi", ())


def test_a_map_without_a_sweep_is_two_points() -> None:
    """Rule: older maps still serve, as a line, and it is said that additions were not measured."""
    whole = measured()
    pairs = tuple(p for p in whole.pairs if "_" not in p.fact.name.replace("bandwidth_both", ""))
    old = Topology(whole.devices, (), pairs, whole.facts)
    costs = fit_map(old)
    (link,) = costs.links.values()
    assert float(link.trip(1)) == pytest.approx(2.0)
    assert "no sweep" in costs.notes[0]


def test_crowded_ranks_are_said() -> None:
    """Rule: where ranks share CPUs, the costs say that they hold for that many ranks only."""
    topology = measured(4)
    squeezed = own_json.parse(own_json.dump(topology).replace('"3"', '"2"'))
    assert "4 ranks shared 3 CPUs" in fit_map(squeezed).notes[0]


def test_files_of_as_many_ranks_go_together(tmp_path: Path) -> None:
    """Rule: a map measured again adds blocks, other ranks are other costs, transports differ."""
    for name, topology in {
        "a": measured(),
        "b": measured(factor=1.2),
        "c": measured(3),
        "d": measured(transport="shm"),
    }.items():
        (tmp_path / name).write_text(own_json.dump(topology))
    two, three = fit_maps([str(tmp_path / name) for name in "abc"])
    assert (two.ranks, three.ranks, len(two.sources)) == (2, 3, 2)
    assert float(next(iter(two.links.values())).trip(8)) == pytest.approx(1.1 * 2e-6, rel=0.01)
    with pytest.raises(Unsupported, match="d: transport shm, but mpi in"):
        fit_maps([str(tmp_path / "a"), str(tmp_path / "d")])


# -- files

LINE = Curve((1e-6, 2e-6), (1e-10, 2e-10), (4096.0,), ((0.0, 1.0),) * 4, 20, 0.03)
COSTS = Costs(
    {
        "core complex": LinkCosts(LINE, LINE, LINE, None, "said"),
        "network": LinkCosts.assumed(1e-5, 1e-9, "x"),
    },
    1e-6,
    4,
    False,
    "mpi",
    ("ab", "cd"),
    ("a note",),
    {"hosts": "h"},
    (("", "network"), ("network", "")),
)


def test_fits_read_back_equal(tmp_path: Path) -> None:
    """Rule: what is written reads back equal."""
    path = tmp_path / "fit.json"
    path.write_text(dump_fit([COSTS, Costs({"node": LinkCosts.assumed(0.0, 1e-9, "")})]))
    found = read_fit(path)
    assert found.costs[0] == COSTS and len(found.costs) == 2
    assert found.sources == {"ab", "cd"}


def test_the_nearest_rank_count_is_taken_and_said() -> None:
    """Rule: costs measured with as many ranks come first; others say with how many they were."""
    both = Fit((Costs(COSTS.links, ranks=2), COSTS))
    assert both.for_ranks(4) is COSTS
    assert both.for_ranks(2).ranks == 2
    assert both.for_ranks(9).notes[-1] == "measured with 4 ranks, not with 9"


def _broken() -> list[str]:
    good = json.loads(dump_fit([COSTS]))
    found = [
        "",
        "[]",
        "{}",
        '{"busbar_fit": 2, "costs": []}',
        '{"busbar_fit": 1, "costs": []}',
        "1e9",
    ]
    found += ["[" * 5000, '{"busbar_fit": 1}', '{"busbar_fit": 1, "costs": [7]}']
    for place, value in (
        ("alpha", [-1.0, 0.0]),
        ("beta", [1e-9]),
        ("beta", ["x", 1.0]),
        ("alpha", [float("nan"), 0.0]),
        ("edges", [0.0]),
        ("edges", None),
    ):
        bad = json.loads(json.dumps(good))
        bad["costs"][0]["links"]["core complex"]["trip"][place] = value
        found.append(json.dumps(bad))
    for key, value in (("links", {}), ("start", -1), ("ranks", "many"), ("table", [["a", "b"]])):
        bad = json.loads(json.dumps(good))
        bad["costs"][0][key] = value
        found.append(json.dumps(bad))
    return found


@pytest.mark.parametrize("text", _broken())
def test_what_is_no_fit_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    """Rule: a bad file is named, with the reason, and nothing of it is used."""
    with pytest.raises(Unsupported) as caught:
        load_fit(text)
    assert "\n" not in str(caught.value)
    path = tmp_path / "fit.json"
    path.write_text(text)
    with pytest.raises(Unsupported, match=r"fit\.json: "):
        read_fit(path)
