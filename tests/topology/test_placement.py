"""The searches against brute force: what is called exact is, what is called bounded is sound."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import examples
from topology.model.merge import merge
from topology.model.topology import Topology
from topology.placement import pick as placement_pick
from topology.placement import rings as orders
from topology.placement import routes as routes_module
from topology.placement.pick import Objective, pick
from topology.placement.rings import disjoint_rings, most_rings, ring_orders
from topology.placement.routes import DirectedLinks, GpuRoutes, ring_flows
from topology.sources import gather, nccl_xml
from topology.views import terminal

from . import drawn
from .drawn import Machine, machines
from .machines import ranks, shapes, switched
from .test_model import topologies

Table = list[list[int]]


def edges(order: tuple[int, ...]) -> list[tuple[int, int]]:
    """The hops of a ring, both of them for two members."""
    return list(pairwise((*order, order[0])))


def badness(table: Table, pairs: list[tuple[int, int]]) -> list[int]:
    """The classes used, worst first: lists compare as the searches must."""
    return sorted((table[a][b] for a, b in pairs), reverse=True)


def members(mask: int) -> tuple[int, ...]:
    """The positions of a bit mask."""
    return tuple(n for n in range(16) if mask >> n & 1)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_weights_compare_as_counts_from_the_worst_class_down(
    first: list[int], data: st.DataObject
) -> None:
    """Rule: a sum of weights orders sets of hops by their worst class, then the next, and so on."""
    second = data.draw(st.lists(st.integers(0, 5), min_size=len(first), max_size=len(first)))
    weight = orders.weights([list(range(6))] * 6, len(first))[0]
    sums = [sum(int(weight[c]) for c in hops) for hops in (first, second)]
    listed = [sorted(hops, reverse=True) for hops in (first, second)]
    assert (sums[0] < sums[1]) == (listed[0] < listed[1])
    assert (sums[0] == sums[1]) == (listed[0] == listed[1])


@given(ranks(), st.data())
def test_ring_of_every_subset_is_the_best_of_all_orders(table: Table, data: st.DataObject) -> None:
    """Rule: Held and Karp's rings are what trying all orders finds, for every subset at once."""
    k = data.draw(st.integers(2, len(table)))
    masks, _, found = orders.rings(orders.weights(table, k), k)
    assert [members(mask) for mask in masks.tolist()] == sorted(
        combinations(range(len(table)), k), key=lambda c: sum(1 << n for n in c)
    )
    for mask, order in zip(masks.tolist(), found.tolist(), strict=True):
        inside = members(mask)
        assert tuple(sorted(order)) == inside
        rest = permutations(inside[1:])
        best = min(badness(table, edges((inside[0], *after))) for after in rest)
        assert badness(table, edges(tuple(order))) == best


@given(ranks(classes=2), st.data())
def test_rings_are_counted_as_brute_force_counts_them(table: Table, data: st.DataObject) -> None:
    """Rule: every distinct ring over linked pairs counts once, whatever its start and direction."""
    if len(table) < 3:
        return
    k = data.draw(st.integers(3, len(table)))
    linked = np.array(table, dtype=bool)
    masks, counts = orders.count_rings(linked, k)
    for mask, count in zip(masks.tolist(), counts.tolist(), strict=True):
        inside = members(mask)
        rings = {
            frozenset(frozenset(edge) for edge in edges((inside[0], *after)))
            for after in permutations(inside[1:])
            if all(linked[a, b] for a, b in edges((inside[0], *after)))
        }
        assert count == len(rings)


@given(ranks(), st.data())
def test_pairings_are_the_best_of_all(table: Table, data: st.DataObject) -> None:
    """Rule: every even subset gets the pairing whose worst pair, second worst pair, … are best."""
    k = 2 * data.draw(st.integers(1, len(table) // 2))
    masks, _, found = orders.pairings(orders.weights(table, k), k)
    for mask, order in zip(masks.tolist(), found.tolist(), strict=True):
        assert tuple(sorted(order)) == members(mask)
        best = min(
            badness(table, list(zip(after[::2], after[1::2], strict=True)))
            for after in permutations(members(mask))
        )
        assert badness(table, list(zip(order[::2], order[1::2], strict=True))) == best


@given(ranks(), st.data())
def test_bounded_search_is_sound(table: Table, data: st.DataObject) -> None:
    """Rule: above the exact limit sets and rings are real; a ring is no worse than its draft."""
    k = data.draw(st.integers(1, len(table)))
    for chosen in placement_pick.bounded_sets(table, k):
        assert len(set(chosen)) == k
        ring = placement_pick.bounded_ring(table, chosen)
        assert ring[0] == chosen[0]
        assert tuple(sorted(ring)) == chosen
        draft = tuple(placement_pick._nearest(table, chosen, chosen[0]))
        assert badness(table, edges(ring)) <= badness(table, edges(draft))
        if k % 2 == 0:
            assert tuple(sorted(placement_pick.bounded_pairing(table, chosen))) == chosen


def check_alike(topology: Topology) -> None:
    """Ranks by kinds of pairs are those of every pair by itself."""
    ids = [gpu.id for gpu in topology.gpus]
    routes = GpuRoutes(topology, ids)
    pairs = list(combinations(range(len(ids)), 2))
    keys = {pair: routes.between(*pair).key for pair in pairs}
    numbers = {key: n for n, key in enumerate(sorted(set(keys.values())))}
    for i, j in pairs:
        assert routes.rank[i][j] == routes.rank[j][i] == numbers[keys[i, j]]
    assert routes.classes == len(numbers)


@given(topologies())
@examples(80)
def test_pairs_of_any_map_are_ranked_by_their_kind(topology: Topology) -> None:
    """Rule: pairs that are taken for alike have equal routes, whatever was stated of them."""
    check_alike(topology)


@given(machines().filter(lambda machine: len(machine.cards(drawn.GPU)) > 1), st.booleans())
@examples(60)
def test_pairs_of_a_drawn_machine_are_ranked_by_their_kind(machine: Machine, nccl: bool) -> None:
    """Rule: the same on trees of packages, root complexes and switches, with NVLinks across."""
    nics = [name for card in machine.cards("nic") for name in card.names]
    text = drawn.nccl(machine, list(range(len(nics))))
    topology = nccl_xml.parse(text)
    check_alike(
        topology if nccl else merge([gather.parse(terminal.matrix_text(topology)), topology])
    )


def test_thousands_of_gpus_have_few_kinds_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a pick out of 512 GPUs looks at kinds of pairs and its choice, not at every pair."""
    topology, looked = switched([[8, 8, 8, 8]] * 16), list[str]()
    route = routes_module._route
    monkeypatch.setattr(
        routes_module, "_route", lambda t, a, b, m: looked.append(a) or route(t, a, b, m)
    )
    found = pick(topology, 8)
    assert {topology.device(id).parent for id in found.picks[0].gpus} == {"SW0.0"}
    assert len(looked) < 3000  # of 130,816 pairs


@given(shapes(9), st.data())
@examples(40)
def test_bounded_search_finds_the_best_ring_on_trees(
    shape: list[list[int]], data: st.DataObject
) -> None:
    """Rule: on a tree of switches the bounded ring through all GPUs is as good as the exact one."""
    topology = switched(shape)
    routes = GpuRoutes(topology, [gpu.id for gpu in topology.gpus])
    size = len(routes.ids)
    _, _, exact = orders.rings(orders.weights(routes.rank, size), size)
    ring = placement_pick.bounded_ring(routes.rank, data.draw(st.permutations(range(size))))
    best = badness(routes.rank, edges(tuple(exact[0].tolist())))
    assert badness(routes.rank, edges(ring)) == best


@given(shapes(8), st.data())
@examples(40)
def test_rings_on_trees_share_no_link(shape: list[list[int]], data: st.DataObject) -> None:
    """Rule: on a tree the ring crosses every link once each way, which no order can better."""
    topology = switched(shape)
    k = data.draw(st.integers(2, len(topology.gpus)))
    for chosen in pick(topology, k).picks:
        assert chosen.bottleneck is not None
        assert chosen.bottleneck.flows == 1
        routes = GpuRoutes(topology, chosen.gpus)
        links = DirectedLinks(routes)
        rates = links.rates([ring_flows((0, *after)) for after in permutations(range(1, k))])
        assert chosen.single == rates.max()


def test_shared_links_are_shared() -> None:
    """Rule: flows over one link in one direction divide it; the other direction is not theirs."""
    topology = switched([[2], [2]])
    links = DirectedLinks(GpuRoutes(topology, [gpu.id for gpu in topology.gpus]))
    alone, two, both_ways = links.rates([[(0, 2)], [(0, 2), (1, 3)], [(0, 2), (2, 0)]])
    assert two == alone / 2
    assert both_ways == alone


@given(ranks(most=5, classes=3))
def test_side_by_side_rings_take_every_link_once(counts: Table) -> None:
    """Rule: the rings exist, use no link twice, and are as many as exhaustive search finds."""
    rings = disjoint_rings(tuple(map(tuple, counts)))
    used: Counter[frozenset[int]] = Counter()
    for ring in rings:
        assert sorted(ring) == list(range(len(counts)))
        used.update(frozenset(edge) for edge in edges(ring))
    assert all(counts[min(e)][max(e)] >= n for e, n in used.items())
    assert len(rings) <= most_rings(counts)
    if len(counts) >= 3:
        assert len(rings) == _most(list(ring_orders(tuple(map(tuple, counts)))), counts)


def _most(rings: list[tuple[int, ...]], counts: Table) -> int:
    """Try every choice of rings, with repetition."""
    best = 0
    for at, ring in enumerate(rings):
        left = [list(row) for row in counts]
        fits = all(left[a][b] > 0 for a, b in edges(ring))
        if fits:
            for a, b in edges(ring):
                left[a][b] -= 1
                left[b][a] -= 1
            best = max(best, 1 + _most(rings[at:], left))
    return best


def test_sixteen_devices_with_many_classes_are_still_exact() -> None:
    """Rule: the limit is reached without overflow: a planted best ring of 16 is found."""
    order = [(5 * n) % 16 for n in range(16)]
    table = [[1 + (3 * a * b + a + b) % 9 for b in range(16)] for a in range(16)]
    table = [[max(table[a][b], table[b][a]) for b in range(16)] for a in range(16)]
    for a, b in edges(tuple(order)):
        table[a][b] = table[b][a] = 0
    masks, total, found = orders.rings(orders.weights(table, 16), 16)
    assert masks.tolist() == [(1 << 16) - 1]
    assert {frozenset(edge) for edge in edges(tuple(found[0].tolist()))} == {
        frozenset(edge) for edge in edges(tuple(order))
    }
    assert total.tolist() == [16]
    assert len(pick(switched([[4, 4], [4, 4]]), 8, Objective.ALL_TO_ALL).picks) == 5
