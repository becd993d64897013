"""NCCL's published model against values worked out by hand from its tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import Unsupported
from collectives.predict.nccl import (
    TREE_SHARE,
    NcclChoice,
    NcclGraph,
    NcclSystem,
    list_choices,
    parse_graphs,
    predict_fastest,
)

H100 = NcclSystem(
    90,
    8,
    {
        "ring": NcclGraph(12, 30.0, 30.0),
        "tree": NcclGraph(12, 30.0, 30.0, pattern=1),
        "nvls": NcclGraph(16, 22.0, 22.0, pattern=5),
    },
)
A100X2 = NcclSystem(80, 16, {"ring": NcclGraph(10, 20.0, 20.0)}, nodes=2)


def _of(system: NcclSystem, collective: str) -> dict[tuple[str, str], NcclChoice]:
    return {(c.algorithm, c.protocol): c for c in list_choices(system, collective)}


@pytest.mark.parametrize(
    ("key", "latency_us", "gb"),
    [
        # base + 14 steps; channels x bandwidth x share x ranks / steps
        (("ring", "Simple"), 8.4 + 14 * 3.4, 360 * 8 / 14),
        (("ring", "LL"), 6.6 + 14 * 0.6, 141 * 8 / 14),
        (("ring", "LL128"), 14 + 14 * 1.9, 360 * 0.92 * 8 / 14),
        # base + 2 x 7 hops; half of the bus bandwidth
        (("tree", "Simple"), 8.4 + 14 * 4.0, 360 * 0.92 / 2),
        (("tree", "LL"), 6.8 + 14 * 0.6, 360 * 0.92 / 3.8 / 2),
        (("tree", "LL128"), 14 + 14 * 1.25, 360 * 0.92 * 7 / 9 / 2),
        # the switch adds: twice 85 % of what 15 of 16 channels carry, limited by one channel's rate
        (("nvls", "Simple"), 25.0, 16 * 22.0 * 8 / 14),
    ],
)
def test_one_node_of_eight(key: tuple[str, str], latency_us: float, gb: float) -> None:
    """Rule: latency and bandwidth of all-reduce on eight H100 are those of the tables."""
    found = _of(H100, "allreduce")[key]
    assert found.latency == pytest.approx(latency_us * 1e-6)
    assert found.bandwidth == pytest.approx(gb * 1e9)


def test_two_nodes() -> None:
    """Rule: between nodes 2(nodes - 1) of the ring's steps pay the network, all pay for posting."""
    found = _of(A100X2, "allreduce")
    assert found["ring", "Simple"].latency == pytest.approx((8.4 + 28 * 3.4 + 2 * 14) * 1e-6)
    assert found["ring", "LL"].latency == pytest.approx((6.6 + 28 * 1.0 + 2 * 2.7) * 1e-6)
    # LL on two nodes: Intel's 39.0, below half of the channels' 200
    assert found["ring", "LL"].bandwidth == pytest.approx(39.0 * 16 / 30 * 1e9)


def test_times() -> None:
    """Rule: time is latency + size / bandwidth, trees corrected by size, rings by their plateau."""
    ring = replace(H100, graphs={"ring": H100.graphs["ring"]})
    size = 1 << 30
    found = predict_fastest(ring, "allreduce", size)
    assert found is not None
    assert found[0] == pytest.approx(56.0e-6 + size / (360e9 * 8 / 14))
    tree = replace(H100, graphs={"tree": H100.graphs["tree"]})
    best = predict_fastest(tree, "allreduce", 1 << 24)
    # 16 MiB is number 18 of the table: 0.9 of LL128's bandwidth beats 0.7 of Simple's.
    assert (TREE_SHARE["LL128"][18], TREE_SHARE["Simple"][18]) == (0.9, 0.7)
    assert best is not None and best[1].protocol == "LL128"
    ll128 = 360 * 0.92 * 7 / 9 / 2
    assert best[0] == pytest.approx(31.5e-6 + (1 << 24) / (0.9 * ll128 * 1e9))
    wide = predict_fastest(A100X2, "allreduce", size)
    assert wide is not None
    assert wide[0] == pytest.approx(1.4 * 131.6e-6 + size / (200e9 * 16 / 30))


def test_what_is_chosen() -> None:
    """Rule: LL for the smallest, Simple in the switch or ring for the largest sizes."""
    small, large = (
        predict_fastest(H100, "allreduce", 256),
        predict_fastest(H100, "allreduce", 1 << 32),
    )
    assert small is not None and small[1].protocol == "LL"
    assert large is not None and large[1].protocol == "Simple"


def test_other_collectives() -> None:
    """Rule: all-gather has n-1 steps, broadcast n; reduce and broadcast run on rings only."""
    gather = _of(H100, "allgather")["ring", "Simple"]
    assert gather.latency == pytest.approx((8.4 + 7 * 3.4) * 1e-6)
    assert gather.bandwidth == pytest.approx(360e9 * 8 / 7)
    cast = _of(H100, "broadcast")
    assert {algorithm for algorithm, _ in cast} == {"ring"}
    assert cast["ring", "Simple"].latency == pytest.approx((8.4 + 3.4) * 1e-6)
    apart = replace(H100, graphs={"ring": NcclGraph(12, 30.0, 30.0, same_channels=False)})
    assert _of(apart, "broadcast")["ring", "Simple"].latency == pytest.approx(
        (8.4 + 8 * 4.0) * 1e-6
    )
    with pytest.raises(Unsupported, match="no alltoall"):
        list_choices(H100, "alltoall")


def test_what_is_not_available() -> None:
    """Rule: the switch needs Hopper, trees of the switch several nodes, PAT one GPU a node."""
    old = replace(H100, sm=80)
    assert not any(c.algorithm == "nvls" for c in list_choices(old, "allreduce"))
    pci = replace(H100, graphs={"ring": NcclGraph(2, 12.0, 12.0, within="PIX")})
    assert {c.protocol for c in list_choices(pci, "allreduce")} == {"LL", "Simple"}
    assert _of(pci, "allreduce")["ring", "LL"].latency == pytest.approx((6.6 + 14 * 1.0) * 1e-6)
    single = NcclSystem(90, 8, {"pat": NcclGraph(1, 40.0, 40.0)}, nodes=8)
    pat = _of(single, "allgather")["pat", "Simple"]
    assert pat.latency == pytest.approx((8 + 3 * 14 / 3.5 + 8 * 2.8) * 1e-6)
    assert predict_fastest(replace(H100, ranks=1), "allreduce", 1024) is None


@pytest.mark.parametrize(
    ("sm", "within", "between", "runs"),
    [
        (70, "NVL", "PXB", True),
        (80, "NVB", "PIX", True),
        (80, "NVL", "PXN", False),
        (90, "NVL", "PXN", True),
        (90, "NVL", "P2C", True),
        (90, "NVL", "PHB", False),
        (90, "C2C", "PIX", False),
        (90, "PIX", "PIX", False),
        (60, "NVL", "PIX", False),
    ],
)
def test_where_ll128_runs(sm: int, within: str, between: str, runs: bool) -> None:
    """Rule: LL128 wants NVLink inside, switches to the NIC; from Hopper on C2C and others too."""
    system = NcclSystem(sm, 8, {"ring": NcclGraph(4, 20.0, 20.0, within=within, between=between)})
    assert (("ring", "LL128") in _of(system, "allreduce")) == runs


@given(st.integers(2, 16), st.integers(64, 1 << 33))
def test_time_is_positive_and_beyond_the_wire(ranks: int, size: int) -> None:
    """Rule: nothing is faster than its bandwidth."""
    found = predict_fastest(replace(H100, ranks=ranks), "allreduce", size)
    assert found is not None and found[0] > size / found[1].bandwidth > 0


def test_graphs_are_read_from_a_log() -> None:
    """Rule: NCCL's lines about its graphs are read, and other lines passed over."""
    log = (
        "h:1:2 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 12, bw 30.000000/20.000000,"
        " type NVL/PIX, sameChannels 1\n"
        "h:1:2 [0] NCCL INFO Pattern 1, crossNic 0, nChannels 12, bw 30.000000/20.000000,"
        " type PIX/PIX, sameChannels 0\n"
        "h:1:2 [0] NCCL INFO Pattern 5, crossNic 0, nChannels 0, bw 0.000000/0.000000,"
        " type NVL/PIX, sameChannels 1\n"
    )
    found = parse_graphs(log)
    assert found["ring"] == NcclGraph(12, 30.0, 20.0)
    assert found["tree"] == NcclGraph(12, 30.0, 20.0, within="PIX", same_channels=False, pattern=1)
    assert "nvls" not in found and found["pat"] == found["ring"]
    assert parse_graphs("nothing of the kind") == {}
    assert parse_graphs(log.replace("20.000000", "14.9.9966")) == {}  # no number, so no graph
    assert "ring" not in parse_graphs(log.replace("nChannels ", "nChannels " + "9" * 5000))
