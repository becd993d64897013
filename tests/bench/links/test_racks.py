"""Racks from what pairs of hosts reach while all talk: the rounds, and what is told from them."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from bench.links.measure import first_ranks, grouped, orders, second_least
from topology.model.measured import Pair, RankPlace


def _loaded(
    racks: list[int], taper: float, slow: dict[int, float], noise: float
) -> dict[Pair, float]:
    """What a switch with narrow uplinks would give: max-min is not needed, shares are."""
    count = max(racks) + 1
    size = {rack: racks.count(rack) for rack in range(count)}
    chance = random.Random(3)
    seen: dict[Pair, list[float]] = {}
    for together in orders(range(len(racks))):
        crossing = [
            sum(racks[a] != racks[b] and r in (racks[a], racks[b]) for a, b in together)
            for r in range(count)
        ]
        for a, b in together:
            rate = min(slow.get(a, 1.0), slow.get(b, 1.0))
            if racks[a] != racks[b]:
                for end in (a, b):
                    rate = min(rate, size[racks[end]] / taper / crossing[racks[end]])
            seen.setdefault((min(a, b), max(a, b)), []).append(rate * chance.uniform(1 - noise, 1))
    least = {pair: second_least(values) for pair, values in seen.items()}
    return least | {(b, a): value for (a, b), value in least.items()}


@given(
    st.integers(2, 4),
    st.integers(3, 5),
    st.sampled_from([2.0, 4.0]),
    st.randoms(use_true_random=False),
)
def test_racks_are_found_however_ranks_are_placed(
    count: int, hosts: int, taper: float, chance: random.Random
) -> None:
    """Rule: hosts behind one tapered uplink are told, in any order and with some noise."""
    racks = [rack for rack in range(count) for _ in range(hosts)]
    chance.shuffle(racks)
    found = grouped(_loaded(racks, taper, {}, 0.05))
    assert {tuple(one) for one in found} == {
        tuple(host for host, rack in enumerate(racks) if rack == one) for one in range(count)
    }


@given(st.integers(4, 16), st.dictionaries(st.integers(0, 3), st.floats(0.1, 0.9), max_size=1))
def test_one_switch_has_no_racks(hosts: int, slow: dict[int, float]) -> None:
    """Rule: nothing is invented on one switch, and a slow link is no rack."""
    assert grouped(_loaded([0] * hosts, 1.0, slow, 0.1)) == []


@given(st.integers(2, 17))
def test_every_pair_meets_several_times_with_others(hosts: int) -> None:
    """Rule: no rank is twice in a round, and every pair has the same number of rounds."""
    seen: dict[frozenset[int], int] = {}
    for together in orders(range(hosts)):
        ends = [end for pair in together for end in pair]
        assert len(set(ends)) == len(ends)
        for pair in together:
            seen[frozenset(pair)] = seen.get(frozenset(pair), 0) + 1
    assert len(seen) == hosts * (hosts - 1) // 2
    assert set(seen.values()) == {12}


def test_hosts_are_told_by_their_first_ranks() -> None:
    """Rule: one rank of each host, in the hosts' order."""
    places = [RankPlace(host, "0", None) for host in ("b", "b", "a", "b", "a", "c")]
    assert first_ranks(places) == [0, 2, 5]
