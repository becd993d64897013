"""Generated machines have the nodes, routes, diameters and bisections that their names promise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import cycle, permutations
from math import prod
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import Unsupported
from collectives.predict.interface import Operation
from collectives.predict.machine import NO_LINK, Machine, Network
from collectives.predict.maps import load_machine, network_from_map
from collectives.predict.named import (
    GENERATORS,
    build_network,
    dgx1,
    dragonfly,
    fattree,
    full,
    nvswitch,
    rail,
    ring,
    torus,
)
from collectives.predict.predictor import choose_predictor
from collectives.predict.simulation import NetworkPredictor
from collectives.schedule.catalogue import algorithms
from tests.conftest import examples
from tests.topology.machines import shapes, switched
from topology.model.topology import Device, Fact, Kind, PairFact, Topology
from topology.sources import own_json

GB = 1e9
TREES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def every_way(made: Network) -> np.ndarray[Any, Any]:
    """The routes of all pairs, after checking that each leads from sender to receiver."""
    n = made.nranks
    src, dst = np.divmod(np.arange(n * n), n)
    routes = made.routes(src, dst).table()
    here = src.copy()
    for column in routes.T:
        used = column != NO_LINK
        assert (made.links.tail[column[used]] == here[used]).all()
        here[used] = made.links.head[column[used]]
    assert (here == dst).all()
    hops = (routes != NO_LINK).sum(axis=1)
    assert ((hops == 0) == (src == dst)).all()
    # No route crosses a link twice.
    for row in routes:
        real = row[row != NO_LINK]
        assert len(np.unique(real)) == len(real)
    return hops.reshape(n, n)


def sound(made: Network, nodes: int) -> np.ndarray[Any, Any]:
    """The hops of all pairs of a machine with so many nodes and cables of one rate both ways."""
    links = made.links
    assert made.nnodes == nodes
    if len(links):
        assert set(links.tail) == set(links.head) == set(range(nodes))
    there = sorted(zip(links.tail, links.head, links.rate, strict=True))
    assert there == sorted(zip(links.head, links.tail, links.rate, strict=True))
    return every_way(made)


def cut(made: Network, half: Iterable[int]) -> float:
    """The most that can flow from some ranks to all others, bytes per second."""
    graph: nx.DiGraph[Any] = nx.DiGraph()
    for a, b, rate in zip(made.links.tail, made.links.head, made.links.rate, strict=True):
        known = graph.get_edge_data(int(a), int(b), {"capacity": 0.0})["capacity"]
        graph.add_edge(int(a), int(b), capacity=known + float(rate))
    chosen = set(half)
    for rank in range(made.nranks):
        graph.add_edge(*(("from", rank) if rank in chosen else (rank, "to")))
    return float(nx.maximum_flow_value(graph, "from", "to"))


@examples(30)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_tori(grid: list[int]) -> None:
    """X·Y·… places, at most Σ⌊side/2⌋ hops, 2·n/X links each way across the longest even side."""
    made = torus(grid)
    hops = sound(made, prod(grid))
    assert hops.max() == sum(side // 2 for side in grid)
    n = prod(grid)
    x = next((side for side in grid if side == max(grid) and side % 2 == 0), 0)
    if x:
        unit = prod(grid[: grid.index(x)])
        half = [r for r in range(n) if r // unit % x < x // 2]
        assert cut(made, half) == pytest.approx(2 * n // x * 25 * GB)


def test_dimension_order() -> None:
    """Routes go along x first, then y, the shorter way round, upwards where both are as long."""
    made = torus((4, 4))
    route = made.routes(np.array([0]), np.array([2 + 4 * 3])).table()[0]
    assert [int(made.links.head[link]) for link in route if link != NO_LINK] == [1, 2, 14]


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_rings_and_full_machines(n: int) -> None:
    """A ring has ⌊n/2⌋ hops at most and 2 links each way across its middle; full has 1 and ¼n²."""
    assert sound(ring(n), n).max() == n // 2
    assert sound(full(n), n).max() == (n > 1)
    if n % 2 == 0:
        assert cut(ring(n), range(n // 2)) == 50 * GB
        assert cut(full(n), range(n // 2)) == n * n / 4 * 25 * GB


@examples(30)
@given(TREES, st.sampled_from([1, 2, 3]))
def test_fat_trees(down: list[int], taper: int) -> None:
    """2·levels hops at most, routes to a receiver form one tree, full bisection over the taper."""
    if down[0] % taper:
        with pytest.raises(Unsupported):
            fattree(down, taper)
        return
    made = fattree(down, taper)
    n = prod(down)
    up = [1, down[0] // taper, *down[1:]]
    nodes = sum(n // prod(down[:i]) * prod(up[:i]) for i in range(len(down) + 1))
    hops = sound(made, nodes)
    split = max((i + 1 for i, size in enumerate(down) if size > 1), default=0)
    assert hops.max() == 2 * split
    for receiver in range(n):
        routes = made.routes(np.arange(n), np.full(n, receiver)).table()
        used = np.unique(routes[routes != NO_LINK])
        assert len(np.unique(made.links.tail[used])) == len(used)
    if down[-1] % 2 == 0:
        share = n / 2 if len(down) == 1 else n / 2 / taper
        assert cut(made, range(n // 2)) == pytest.approx(share * 25 * GB)


@pytest.mark.parametrize("down", [(4, 4), (2, 2, 2), (3, 3), (4, 4, 4)])
def test_shifts_do_not_collide_in_a_full_fat_tree(down: tuple[int, ...]) -> None:
    """D-mod-k sends every cyclic shift of all ranks without two messages on a link (Zahavi)."""
    made, n = fattree(down), prod(down)
    rank = np.arange(n)
    for by in range(1, n):
        routes = made.routes(rank, (rank + by) % n).table()
        assert np.bincount(routes[routes != NO_LINK]).max() == 1


@examples(25)
@given(
    st.integers(1, 3), st.integers(1, 4), st.integers(0, 3), st.integers(1, 7), st.integers(1, 2)
)
def test_dragonflies(p: int, a: int, h: int, g: int, taper: int) -> None:
    """3 hops between routers at most; ⌊a·h/(g−1)⌋ cables between every two groups."""
    if g > 1 and a * h < g - 1:
        with pytest.raises(Unsupported):
            dragonfly(p, a, h, g, taper)
        return
    made = dragonfly(p, a, h, g, taper)
    hops = sound(made, p * a * g + a * g)
    assert hops.max() <= 5
    group = np.concatenate([np.arange(p * a * g) // (p * a), np.arange(a * g) // a])
    ends = group[made.links.tail], group[made.links.head]
    between = ends[0] != ends[1]
    if g > 1:
        each = a * h // (g - 1)
        pairs, count = np.unique(np.stack(ends)[:, between], axis=1, return_counts=True)
        assert pairs.shape[1] == g * (g - 1)
        assert (count == each).all()
        assert (made.links.rate[between] == 25 * GB / taper).all()
        # No router has more global cables than it has ports.
        assert np.bincount(made.links.tail[between]).max() <= h


def test_a_balanced_dragonfly_of_the_paper() -> None:
    """p=4, a=8, h=4 has 1056 places (Kim et al. 2008); one is chosen that is large enough."""
    assert dragonfly(4, 8, 4).nranks == 1056
    assert build_network("dragonfly", 343).nranks == 1056
    assert build_network("dragonfly", 72).nranks == 72


@pytest.mark.parametrize(("gpus", "nodes"), [(8, 1), (4, 3), (1, 5)])
def test_nvswitch_nodes(gpus: int, nodes: int) -> None:
    """Two hops between any two GPUs; half of a node to the other half at its GPUs' full rate."""
    made = nvswitch(gpus, nodes)
    hops = sound(made, gpus * nodes + nodes + (nodes > 1))
    assert hops.max() <= 2
    if nodes == 1:
        assert cut(made, range(gpus // 2)) == gpus // 2 * 450 * GB


@pytest.mark.parametrize("pxn", [0, 1])
@pytest.mark.parametrize(("gpus", "nodes", "taper"), [(2, 2, 1), (4, 4, 2), (3, 6, 1)])
def test_rail_pods(gpus: int, nodes: int, taper: int, pxn: int) -> None:
    """Along a rail 2 hops, across 4; no spine with PXN; full bisection over the taper."""
    made = rail(gpus, nodes, taper, pxn)
    hops = sound(made, gpus * nodes + nodes + gpus + nodes // taper)
    rank = np.arange(gpus * nodes)
    node, own = rank // gpus, rank % gpus
    away = node[:, None] != node
    assert (hops[away & (own[:, None] == own)] == 2).all()
    assert (hops[away & (own[:, None] != own)] == 4).all()
    assert (hops[~away & (rank[:, None] != rank)] == 2).all()
    src, dst = np.divmod(np.arange(len(rank) ** 2), len(rank))
    routes = made.routes(src, dst).table()
    assert (routes[routes != NO_LINK] >= len(rank)).any()
    first_spine = gpus * nodes + nodes + gpus
    spines = made.links.head[routes[routes != NO_LINK]] >= first_spine
    assert spines.any() == (pxn == 0 and gpus > 1)
    if taper == 1 and nodes % 2 == 0:
        assert cut(made, range(gpus * nodes // 2)) == gpus * nodes / 2 * 50 * GB


def test_a_dgx1() -> None:
    """Six NVLinks a GPU, a route over them for 16 pairs, PCIe and the sockets' link for others."""
    made = dgx1()
    hops = sound(made, 14)
    wires = (made.links.tail < 8) & (made.links.head < 8)
    per_gpu = np.bincount(made.links.tail[wires], made.links.rate[wires])
    assert (per_gpu == 6 * 20 * GB).all()
    assert (hops == 1).sum() == 32
    assert hops[0, 5] == 5
    assert hops[0, 3] == 1
    assert cut(made, range(4)) > 10 * GB


@examples(20)
@given(shapes(6), st.sampled_from([0, 6]))
def test_any_map_of_gpus_is_a_machine(shape: list[list[int]], nvlinks: int) -> None:
    """Messages take the map's routes, at its bandwidths; each direction is a link of its own."""
    found = switched(shape, nvlinks)
    made = network_from_map(found)
    every_way(made)
    names = [gpu.id for gpu in found.gpus]
    assert list(made.names[: made.nranks]) == names
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            route = made.routes(np.array([i]), np.array([j])).table()[0]
            rates = [float(made.links.rate[link]) for link in route if link != NO_LINK]
            assert rates == [hop.bandwidth for hop in found.route(a, b)]


def test_a_measured_map_is_a_machine() -> None:
    """Every pair has what was measured; both ways at once share what they reached together."""
    facts = {"latency": 2e-6, "bandwidth": 8e9, "bandwidth_both": 10e9}
    ranks = tuple(Device(f"RANK{i}", Kind.RANK, i) for i in range(3))
    pairs = tuple(
        PairFact(a.id, b.id, Fact(name, value, "measured"))
        for a in ranks
        for b in ranks
        if a is not b
        for name, value in facts.items()
    )
    made = network_from_map(Topology(ranks, (), pairs))
    there, back = made.routes(np.array([0, 1]), np.array([1, 0])).table()
    assert there[0] != back[0]
    assert there[1] == back[1]
    assert made.links.rate[there].tolist() == [8e9, 10e9]
    assert made.links.latency[there].sum() == 2e-6
    hosts = tuple(Device(f"HOST{i}", Kind.HOST, i) for i in range(3))
    homed = tuple(replace(rank, parent=host.id) for rank, host in zip(ranks, hosts, strict=True))
    cluster = network_from_map(Topology((*hosts, *homed), (), pairs))
    two = cluster.routes(np.array([0, 0]), np.array([1, 2])).table()
    shared = {*two[0].tolist()} & {*two[1].tolist()} - {NO_LINK}
    assert [cluster.links.rate[link] for link in shared] == [8e9]
    with pytest.raises(Unsupported, match="nothing was measured"):
        network_from_map(Topology(ranks, (), pairs[:-3]))
    with pytest.raises(Unsupported, match="neither GPUs nor measured ranks"):
        network_from_map(Topology((Device("HOST", Kind.HOST),)))


def _hosts(rates: Sequence[float], latency: float = 2e-6) -> Topology:
    """A measured map of hosts with a rank each; ``rates``: of its pairs, used again in turn."""
    hosts = tuple(Device(f"HOST{i}", Kind.HOST, i) for i in range(4))
    ranks = tuple(Device(f"RANK{i}", Kind.RANK, i, parent=f"HOST{i}") for i in range(4))
    pairs = [
        PairFact(a.id, b.id, Fact(name, value, "measured"))
        for (a, b), rate in zip(permutations(ranks, 2), cycle(rates), strict=False)
        for name, value in (("latency", latency), ("bandwidth", rate))
    ]
    return Topology((*hosts, *ranks), (), tuple(pairs))


def test_a_map_is_copied_for_more_ranks(tmp_path: Path) -> None:
    """Rule: more ranks than a map has are on copies of it, in ``simulate`` as in ``cost``.

    Inside a copy routes are the map's. Between copies a message passes the ports of both hosts, at
    the latency and the rate of the median pair; so equal pairs give the times of ``cost``.
    """
    whole = _hosts([8e9])
    one, many = network_from_map(whole), network_from_map(whole, nranks=10)
    assert (one.nranks, many.nranks) == (4, 12)
    ends = np.array([1, 2]), np.array([2, 0])
    assert (many.routes(*ends).table()[:, :3] == one.routes(*ends).table()).all()
    assert (many.routes(ends[0] + 4, ends[1] + 4).table()[:, :3] >= len(one.links)).all()
    (far,) = many.routes(np.array([0]), np.array([5])).table()
    assert [many.link(link) for link in far] == [
        "RANK0 → HOST0", "HOST0 → network", "network → HOST1 of copy 2",
        "HOST1 of copy 2 → RANK1 of copy 2",
    ]  # fmt: skip
    assert many.links.latency[far].sum() == pytest.approx(2e-6)
    assert far[1] in many.routes(np.array([0]), np.array([1])).table()
    assert "has 4 ranks; more ranks are on copies of it" in many.notes[-1]
    file = tmp_path / "map.json"
    file.write_text(own_json.dump(whole))
    for name in ("ring", "recursive_doubling"):
        operation = Operation("allreduce", name, 16)
        simulated = NetworkPredictor(Machine(network=build_network(str(file), 16)))
        cost = choose_predictor(load_machine([str(file)], None, 16))
        sizes = [1 << 10, 1 << 20]
        expected = cost.seconds(operation, sizes)
        assert simulated.seconds(operation, sizes) == pytest.approx(expected, rel=1e-6), name


@pytest.mark.parametrize("name", algorithms("allreduce"))
def test_the_bound_of_a_map_is_below_its_simulated_times(name: str, tmp_path: Path) -> None:
    """Rule: the lower bound has the best pair's rate, so no algorithm's bytes are faster.

    Its latencies are those of ports with one message at a time, and in the simulator they overlap.
    """
    file = tmp_path / "map.json"
    file.write_text(own_json.dump(_hosts([1e9, 1.1e9, 1.3e9, 2e9, 1.05e9])))
    sizes = [1 << 16, 1 << 20]
    bound = choose_predictor(load_machine([str(file)], None, 4)).one_port_bound(
        "allreduce", 4, sizes
    )
    simulated = NetworkPredictor(Machine(network=build_network(str(file), 4)))
    seconds = simulated.seconds(Operation("allreduce", name, 4), sizes)
    assert bound is not None and (seconds >= bound * (1 - 1e-9)).all()


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_without_a_size_a_machine_has_places_for_the_ranks(name: str) -> None:
    """What a text leaves out is chosen so that the ranks fit."""
    for n in (1, 2, 7, 8):
        assert build_network(name, n).nranks >= n


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mesh:4x4", "no machine 'mesh'; there are: ring, full"),
        ("torus:4x", "'4x' is no number, nor numbers like 4x4"),
        ("torus:4x4:gbs", "'gbs' is not one key=value"),
        ("torus:4x4:gbs=1:gbs=2", "is not one key=value"),
        ("torus:4x4:rate=2", "torus has no parameter 'rate'; its parameters: grid, gbs"),
        ("torus:4x4:gbs=0", "it must be above 0"),
        ("torus:4x4:latency_us=-1", "it must be 0 or more"),
        ("torus:4x4:gbs=nan", "it must be above 0"),
        ("torus:0x4", "sides of at least 1"),
        ("torus:99999x99999", "at most 1048576 places"),
        ("ring:1.5", "n must be a whole number, not 1.5"),
        ("fattree:4x4:taper=3", "taper=3 does not divide a leaf's 4 links up"),
        ("dragonfly:p=1:a=2:h=1:g=9", "2x1 global links do not reach 8 other groups"),
        ("rail:nodes=4:pxn=2", "pxn=2; it is 0 or 1"),
        ("rail:nodes=4:taper=3", "taper=3 does not divide the 4 links up"),
        ("nvswitch:gpus=0", "1 GPU or more"),
        ("ring:4:burst_kib=1", "burst_kib needs buffer_kib"),
        ("full:5000", "from 1 to 2048 places"),
    ],
)
def test_a_text_that_is_no_machine_says_what_is_wrong(text: str, says: str) -> None:
    """One line with the value and what would do."""
    with pytest.raises(Unsupported) as error:
        build_network(text, 16)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_too_many_hops_are_refused_before_memory_is_taken() -> None:
    """All pairs of a very long ring would need gigabytes for their routes."""
    n = 2048
    src, dst = np.divmod(np.arange(n * n), n)
    with pytest.raises(Unsupported, match="too many at once"):
        ring(n).routes(src, dst).table()
