"""Picks: the machines of the field report, what ranks sets, what is refused, and what is said."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import BusbarError, ProbeError, Unsupported
from topology.model.device import Fact
from topology.model.topology import Kind, PairFact, Topology, with_model
from topology.placement.pick import Objective, Ranking, available, pick
from topology.placement.text import as_json, reasons, text
from topology.sources import gather

from .conftest import Loaded
from .machines import DGX_1V, dgx_1v, field_report, shapes, stated, switched
from .test_model import topologies

GB = 1e9


def ids(*numbers: int) -> tuple[str, ...]:
    """GPU ids."""
    return tuple(f"GPU{n}" for n in numbers)


def tier_of(ranking: Ranking, wanted: tuple[str, ...]) -> int:
    """The place of the tier that holds a set."""
    return next(n for n, tier in enumerate(ranking.tiers) if wanted in tier.sets)


def test_dgx_1v_sets_with_nvlink_rings_come_first() -> None:
    """Rule: 8 of 70 sets of four hold an NVLink ring, and they are the first eight."""
    ranking = pick(dgx_1v(), 4, most=70)
    linked = {frozenset(pair) for pair in DGX_1V}

    def holds_ring(chosen: tuple[int, ...]) -> bool:
        return any(
            all(
                frozenset(edge) in linked
                for edge in zip(order, (*order[1:], order[0]), strict=True)
            )
            for order in permutations(chosen)
        )

    expected = {ids(*chosen) for chosen in combinations(range(8), 4) if holds_ring(chosen)}
    assert len(expected) == 8
    assert {best.gpus for best in ranking.picks[:8]} == expected
    assert all(
        best.bottleneck and best.bottleneck.hop.kind == "nvlink" for best in ranking.picks[:8]
    )
    assert "8 of 70 sets of 4 hold a ring of NVLinks" in reasons(ranking)


def test_all_of_a_dgx_1v_stay_on_nvlink() -> None:
    """Rule: one of the 30 of 2520 ring orders is found, and a grid whose lines are rings as well.

    The identity order is known not to be one.
    """
    ranking = pick(dgx_1v(), 8)
    best = ranking.picks[0]
    assert best.grid is not None
    rows = best.grid.rows
    assert sorted(id for row in rows for id in row) == list(ids(*range(8)))
    for line in (best.order, *rows, *zip(*rows, strict=True)):
        numbers = [int(id.removeprefix("GPU")) for id in line]
        hops = zip(numbers, [*numbers[1:], numbers[0]], strict=True)
        assert all((min(hop), max(hop)) in DGX_1V for hop in hops)
    assert len(best.rings) == 3
    assert best.busbw == pytest.approx(120 * GB)
    assert (
        "30 of 2520 orders of these GPUs stay on NVLink; index order does not "
        "(GPU3→GPU4, GPU7→GPU0)" in reasons(ranking)
    )


def test_machines_have_their_expected_picks(machine: Loaded) -> None:
    """Rule: on every described machine the best set, its busbw and rings are as expected."""
    described, topology = machine
    for expected in described["expect"]["picks"]:
        ranking = pick(topology, expected["k"], Objective(expected.get("objective", "ring")))
        best = ranking.picks[0]
        assert best.gpus == ids(*expected["best"])
        assert best.busbw == pytest.approx(expected["busbw_gb_s"] * GB)
        assert len(best.rings) == expected.get("rings", 0)
        if "worst" in expected:
            assert tier_of(ranking, ids(*expected["worst"])) > 0


@given(shapes(8), st.data())
def test_ranking_is_whole_and_in_order(shape: list[list[int]], data: st.DataObject) -> None:
    """Rule: every set is rated once, and no later one promises more bandwidth."""
    topology = switched(shape)
    size = len(topology.gpus)
    objective = data.draw(st.sampled_from(Objective))
    k = data.draw(
        st.integers(1, size).filter(lambda k: objective is not Objective.PAIRS or k % 2 == 0)
    )
    ranking = pick(topology, k, objective, most=100)
    sets = [chosen.gpus for chosen in ranking.picks]
    assert sorted(sets) == sorted(combinations([gpu.id for gpu in topology.gpus], k))
    promised = [chosen.busbw for chosen in ranking.picks]
    assert promised == sorted(promised, reverse=True)
    for chosen in ranking.picks:
        assert sorted(chosen.order) == sorted(chosen.gpus)
        assert sorted(id for group in chosen.groups for id in group) == sorted(chosen.gpus)
        paired = [id for pair in chosen.pairs for id in pair]
        assert sorted(paired) == (sorted(chosen.gpus) if objective is Objective.PAIRS else [])
    for width in (80, 160):
        assert max(map(len, text(ranking, width).splitlines())) <= width
    assert [p["gpus"] for p in json.loads(as_json(ranking))["picks"]] == [list(s) for s in sets]


def test_equal_sets_stay_in_one_numa_node() -> None:
    """Rule: through an NVSwitch all sets promise the same; those of one NUMA node come first."""
    topology = switched([[4], [4]], nvlinks=18)
    assert pick(topology, 4).picks[0].gpus == ids(0, 1, 2, 3)
    left = available(topology, ["3"], busy=False)
    assert pick(topology, 4, among=left).picks[0].gpus == ids(4, 5, 6, 7)
    assert pick(topology, 8).picks[0].busbw == pytest.approx(18 * 20.6 * GB)


def test_more_than_sixteen_are_searched_with_a_bound() -> None:
    """Rule: above 16 GPUs the result says that not all was seen, and keeps switches together."""
    ranking = pick(switched([[4, 4, 4], [4, 4, 4]]), 4)
    assert not ranking.exact
    assert len({ranking.pool.ids.index(id) // 4 for id in ranking.picks[0].gpus}) == 1
    assert "bounded search" in text(ranking)
    whole = pick(switched([[4, 4, 4], [4, 4, 4]]), 24).picks[0]
    assert whole.bottleneck is not None
    assert whole.bottleneck.flows == 1


def with_facts(topology: Topology, facts: dict[str, tuple[Fact, ...]]) -> Topology:
    """The topology with more said of some devices."""
    devices = tuple(replace(d, facts=(*d.facts, *facts.get(d.id, ()))) for d in topology.devices)
    return replace(topology, devices=devices)


def test_busy_and_excluded_gpus_are_left_out() -> None:
    """Rule: --busy leaves out what has processes or load, --exclude what any name names."""
    topology = with_facts(
        switched([[4]]),
        {
            "GPU0": (Fact("processes", 2, "nvml"),),
            "GPU1": (Fact("processes", 0, "nvml"), Fact("utilization_percent", 55, "nvml")),
            "GPU2": (Fact("processes", 0, "nvml"), Fact("utilization_percent", 0, "nvml")),
        },
    )
    assert [gpu.id for gpu in available(topology, [], busy=True)] == ["GPU2", "GPU3"]
    assert [gpu.id for gpu in available(topology, ["2", "GPU0"], busy=False)] == ["GPU1", "GPU3"]


@pytest.mark.parametrize(
    ("machine", "k", "objective", "named", "error"),
    [
        (field_report(), 0, Objective.RING, "0 GPUs wanted", Unsupported),
        (field_report(), 3, Objective.PAIRS, "even number", Unsupported),
        (Topology(), 1, Objective.RING, "no GPU to pick", ProbeError),
    ],
    ids=["none", "odd", "no GPU"],
)
def test_impossible_wishes_are_refused(
    machine: Topology, k: int, objective: Objective, named: str, error: type[BusbarError]
) -> None:
    """Rule: a wish that cannot be met is an error that says why; `test_cli` has more of them.

    It is Unsupported, as other wrong arguments are, and ProbeError if the map has nothing to pick.
    """
    with pytest.raises(error, match=named):
        pick(machine, k, objective)


def test_nvlinks_that_no_source_states_are_named() -> None:
    """Rule: a map without the NVLinks of its boards says that its figures are too low."""
    bare, linked = switched([[2], [2]]), switched([[2], [2]], nvlinks=12)
    model = Fact("model", "NVIDIA H100 80GB HBM3", "smi")
    boards = [
        replace(d, facts=(*d.facts, model)) if d.kind is Kind.GPU else d for d in bare.devices
    ]
    nccl = replace(bare, sources=("nccl xml",))
    for machine, says in (
        (bare, ""),
        (linked, ""),
        (replace(bare, devices=tuple(boards)), "for NVIDIA H100 80GB HBM3 has them"),
        (replace(bare, devices=tuple(boards), sources=("topo -m",)), ""),
        (nccl, "if these GPUs have them"),
    ):
        shown = " ".join(reasons(pick(machine, 4)))
        assert ("no source states NVLinks" in shown) == bool(says) and says in shown


@pytest.mark.parametrize("fact", [("p2p_read", "CNS"), ("p2p_access", False)])
def test_pairs_without_peer_access_rank_last(fact: tuple[str, str | bool]) -> None:
    """Rule: where a source says that P2P fails, a like pair with P2P is better, and it is said.

    nvidia-smi has it as a state of the driver, AMD's and CUDA's tests as access or none.
    """
    topology = switched([[3]])
    refused = PairFact("GPU0", "GPU1", Fact(*fact, "smi"))
    ranking = pick(replace(topology, pairs=(refused,)), 2)
    assert ranking.picks[-1].gpus == ids(0, 1)
    assert "without P2P" in text(ranking)


@given(topologies(), st.integers(-1, 7), st.sampled_from(Objective))
def test_any_map_is_picked_from_or_refused(
    topology: Topology, k: int, objective: Objective
) -> None:
    """Rule: whatever the map, there is a ranking that can be told, or an error of ours."""
    try:
        ranking = pick(topology, k, objective)
    except (ProbeError, Unsupported) as error:
        assert str(error)
    else:
        assert text(ranking, 60)
        assert as_json(ranking)


def _with_rates(topology: Topology, rates: dict[tuple[int, int], float]) -> Topology:
    """The same machine, of which so many bytes per second were measured both ways."""
    stated = tuple(
        PairFact(f"GPU{a}", f"GPU{b}", Fact("bandwidth", rate, "bandwidth"))
        for pair, rate in rates.items()
        for a, b in (pair, pair[::-1])
    )
    return replace(topology, pairs=(*topology.pairs, *stated))


def test_what_was_measured_beats_what_is_assumed() -> None:
    """Rule: a pick promises what was measured, above and below what is assumed, and says so.

    A rate that PCIe cannot give is not told as that of a PCIe link.
    """
    pairs = list(combinations(range(len(field_report().gpus)), 2))
    assert pick(field_report(), 4).picks[0].assumed
    for rate in (0.8 * GB, 30 * GB):
        ranking = pick(_with_rates(field_report(), dict.fromkeys(pairs, rate)), 4)
        best = ranking.picks[0]
        assert not best.assumed and best.busbw == pytest.approx(rate)
        shown = text(ranking)
        assert "as measured, " in shown and " (as measured)" in shown
        assert "assumed" not in shown


@pytest.mark.parametrize(
    ("cell", "gpus", "rate", "model"),
    [
        ("NV2", 4, "20.0", "V100"),
        ("NV6", 4, "20.6", "H100"),
        ("NV12", 8, "20.0", "A100"),
        ("NV18", 8, "20.6", "H100"),
    ],
)
def test_nvlinks_are_of_the_oldest_generation_with_as_many(
    cell: str, gpus: int, rate: str, model: str
) -> None:
    """Rule: without a stated model, the links of a GPU in all tell the oldest possible one.

    The output names it, and the option that names another.
    """
    ranking = pick(stated(dict.fromkeys(combinations(range(gpus), 2), cell), gpus), 2)
    count = int(cell[2:])
    assert ranking.picks[0].single == pytest.approx(count * float(rate) * GB)
    told = f"NVLinks of {model} are assumed, the oldest with as many a GPU, {rate} GB/s a link"
    shown = " ".join(text(ranking).split())
    assert told in shown and "--model B200" in shown


@pytest.mark.parametrize(
    ("listed", "model", "rate"),
    [
        ("", "B200", 40.1),
        ("NVIDIA B200", None, 40.1),
        ("NVIDIA B200", "B200", 40.1),
        ("NVIDIA H100 80GB HBM3", None, 20.6),
        ("NVIDIA Z9", "NVIDIA B200", 40.1),
    ],
)
def test_the_model_of_a_gpu_tells_the_rate_of_its_nvlinks(
    listed: str, model: str | None, rate: float
) -> None:
    """Rule: a model in the map, or else --model, has the rate of its links, without "assumed"."""
    topology = _eight(listed)
    ranking = pick(topology if model is None else with_model(topology, model), 2)
    assert ranking.picks[0].single == pytest.approx(18 * rate * GB)
    assert "assumed" not in text(ranking)


@pytest.mark.parametrize(
    ("listed", "model", "message"),
    [
        ("NVIDIA H100 80GB HBM3", "B200", "GPU0 is NVIDIA H100 80GB HBM3 by its source"),
        ("NVIDIA L40S", "B200", "GPU0 is NVIDIA L40S by its source"),
        ("", "Z9", "no rates are known of it; write B200 or H100 SXM"),
    ],
)
def test_a_model_against_the_map_or_without_rates_is_refused(
    listed: str, model: str, message: str
) -> None:
    """Rule: --model does not overrule a source, and an unknown one is no silent assumption."""
    with pytest.raises(Unsupported, match=message):
        with_model(_eight(listed), model)


def _eight(listed: str) -> Topology:
    """Eight GPUs with 18 NVLinks each, as topo -m tells; ``listed``: their name in nvidia-smi."""
    topology = stated(dict.fromkeys(combinations(range(8), 2), "NV18"), 8)
    devices = [
        replace(one, name=listed) if one.kind is Kind.GPU else one for one in topology.devices
    ]
    return replace(topology, devices=tuple(devices))


def test_a_hidden_tree_has_no_known_path() -> None:
    """Rule: where all pairs are SYS within a NUMA node, no link between CPUs is made up."""
    rows = ["\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity"]
    rows += ["GPU0\t X \tSYS\t0-15\t0", "GPU1\tSYS\t X \t0-15\t0"]
    ranking = pick(gather.parse("\n".join(rows)), 2)
    for shown in (text(ranking), as_json(ranking)):
        assert "the path is unknown" in shown and "between CPUs" not in shown


def test_a_pair_that_measured_badly_is_left_out() -> None:
    """Rule: a sick pair makes its sets worse than those without it; noise of 5 % ranks nothing."""
    pairs = list(combinations(range(7), 2))
    noisy = {pair: (11.5 + 0.5 * (sum(pair) % 2)) * GB for pair in pairs}
    by_name, by_noise = pick(field_report(), 2), pick(_with_rates(field_report(), noisy), 2)
    assert by_noise.picks[0].gpus == by_name.picks[0].gpus == ids(0, 1)
    sick = pick(_with_rates(field_report(), {**noisy, (0, 1): 2 * GB}), 2)
    assert sick.picks[0].gpus == ids(0, 2)
    assert sick.tiers[-1].sets == (ids(0, 1),)
