"""Simulated times against closed forms, and against contended cases computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.predict.machine import NO_LINK, Ids, Links, Network, Numbers
from collectives.predict.named import build_network
from collectives.predict.simulation import Simulation, find_busiest
from collectives.schedule.catalogue import draft, spec
from collectives.schedule.moves import Buffer, Move, Slot
from collectives.schedule.schedule import Schedule
from tests.collectives.cases import PAIRS, lg
from tests.collectives.predict.predicting import simulate
from tests.collectives.predict.test_simulation import drafted
from tests.conftest import examples

# (ranks, latency, overhead, seconds a byte, seconds an added byte, bytes) to seconds.
Form = Callable[[int, float, float, float, float, float], float]


#: A cable between every two ranks: nothing is shared, but two messages of one pair.
FORMS: dict[tuple[str, str], Form] = {
    ("allreduce", "ring"): lambda p, a, o, b, g, n: (
        2 * (p - 1) * (a + 2 * o + n * b / p) + (p - 1) * g * n / p
    ),
    ("allreduce", "tree"): lambda p, a, o, b, g, n: lg(p) * (2 * (a + o + n * b) + g * n),
    ("allreduce", "recursive_doubling"): lambda p, a, o, b, g, n: lg(p) * (a + 2 * o + n * (b + g)),
    ("allreduce", "halving_doubling"): lambda p, a, o, b, g, n: (
        2 * lg(p) * (a + 2 * o) + (p - 1) / p * n * (2 * b + g)
    ),
    ("allreduce", "ps"): lambda p, a, o, b, g, n: (
        2 * ((p - 1) * o + a + n * b) + (p - 1) * g * n
    ),
    ("allreduce", "sharded_ps"): lambda p, a, o, b, g, n: (
        2 * (2 * (p - 1) * o + a + n * b / p) + (p - 1) * g * n / p
    ),
    ("allreduce", "one_shot"): lambda p, a, o, b, g,
    n: 2 * (p - 1) * o + a + n * b + (p - 1) * g * n,
    ("allgather", "ring"): lambda p, a, o, b, g, n: (p - 1) * (a + 2 * o + n * b / p),
    ("allgather", "doubling"): lambda p, a, o, b, g, n: lg(p) * (a + 2 * o) + (p - 1) / p * n * b,
    ("alltoall", "pairwise"): lambda p, a, o, b, g, n: (p - 1) * (a + 2 * o + n * b / p),
    ("alltoall", "direct"): lambda p, a, o, b, g, n: 2 * (p - 1) * o + a + n * b / p,
    ("broadcast", "binomial"): lambda p, a, o, b, g, n: lg(p) * (a + o + n * b),
    ("broadcast", "flat"): lambda p, a, o, b, g, n: (p - 1) * o + a + n * b,
    ("gather", "binomial"): lambda p, a, o, b, g, n: lg(p) * (a + o) + (p - 1) / p * n * b,
    ("scatter", "binomial"): lambda p, a, o, b, g, n: lg(p) * (a + o) + (p - 1) / p * n * b,
    ("reduce", "binomial"): lambda p, a, o, b, g, n: lg(p) * (a + o + n * (b + g)),
    ("barrier", "dissemination"): lambda p, a, o, b, g, n: lg(p) * (a + 2 * o + b + g),
}  # fmt: skip


@examples(60)
@given(
    st.sampled_from(sorted(FORMS)),
    st.sampled_from([2, 4, 8, 16, 32]),
    st.sampled_from([0.0, 1e-6, 3.7e-5]),
    st.sampled_from([0.0, 2.5e-7]),
    st.floats(1e8, 1e12),
    st.sampled_from([0.0, 1e-11, 3e-9]),
    st.integers(1, 10**10),
)
def test_without_contention_times_are_the_closed_forms(
    which: tuple[str, str], p: int, a: float, o: float, rate: float, g: float, n: int
) -> None:
    """To 1e-9: latency, overheads, bytes and additions of algorithms that share no link."""
    made = replace(
        build_network(f"full:{p}:latency_us={a * 1e6}:gbs={rate / 1e9}", p), overhead=o, gamma=g
    )
    found = simulate(draft(*which, p), spec(which[0]), made, n)
    assert found.seconds == pytest.approx(FORMS[which](p, a, o, 1 / rate, g, n), rel=1e-9)
    assert found.parts["sharing"] == pytest.approx(0.0, abs=1e-9 * found.seconds)


def test_a_parameter_server_shares_its_port() -> None:
    """Behind one port each way the server takes 2(P−1)nβ: workers get equal shares of it."""
    p, n = 8, 10**6
    made = build_network("nvswitch:gpus=8:gbs=10:latency_us=1", p)
    found = simulate(draft("allreduce", "ps", p), spec("allreduce"), made, n)
    assert found.seconds == pytest.approx(2 * (2e-6 + (p - 1) * n / 10e9), rel=1e-9)
    alone = n / 10e9
    assert found.parts["sharing"] == pytest.approx(2 * (p - 2) * alone, rel=1e-9)
    first, *_ = find_busiest(found, 3)
    assert first.links == 2
    assert first.nbytes == (p - 1) * n


# -- by hand: links of 1 byte/s, chunks of 1 byte


def wired(
    rates: list[float], delays: list[float], routes: dict[tuple[int, int], list[int]]
) -> Network:
    """A machine of links with given rates, and what route each pair takes; ends do not matter."""
    size = len(rates)
    links = Links(
        np.zeros(size, np.int32), np.ones(size, np.int32), np.array(rates), np.array(delays)
    )
    longest = max(map(len, routes.values()))

    def router(src: Numbers, dst: Numbers) -> Ids:
        rows = [routes[pair] for pair in zip(src.tolist(), dst.tolist(), strict=True)]
        return np.array([row + [NO_LINK] * (longest - len(row)) for row in rows], np.int32)

    return Network("by hand", 8, 8, links, router)


def ends(made: Network, *steps: list[tuple[int, int, int, bool]]) -> list[float]:
    """When each of 6 ranks ends, to 1e-9; a move is (src, dst, bytes, reduce)."""
    moves = [
        [Move(s, d, Slot(Buffer.OUT, 0, n), Slot(Buffer.OUT, 0, n), r) for s, d, n, r in step]
        for step in steps
    ]
    simulation = Simulation(Schedule.of(6, 8, moves), spec("allreduce"), made)
    fast, slow = (simulation.run(8, steps_at_once=both) for both in (True, False))
    assert fast.ranks == pytest.approx(slow.ranks, rel=1e-12)
    assert sum(fast.parts.values()) == pytest.approx(fast.seconds, rel=1e-12)
    return [round(float(t), 9) for t in fast.ranks]


Route = dict[tuple[int, int], list[int]]
Sent = tuple[int, int, int]
#: Rates and delays of links, the links of each pair, steps of (src, dst, bytes), ends of the ranks.
BY_HAND: dict[str, tuple[list[float], list[float], Route, list[list[Sent]], list[float]]] = {
    "two messages of 3 bytes on one link of 1 byte/s take 6 s; a third elsewhere takes 3 s": (
        [1, 1], [0, 0], {(0, 1): [0], (2, 3): [0], (4, 5): [1]},
        [[(0, 1, 3), (2, 3, 3), (4, 5, 3)]], [6, 6, 6, 6, 3, 3],
    ),
    # The third, of 3 bytes, ends after 2 s; A still holds the others, which end after 6 s.
    "one over A, one over A and B, one over B (A 1, B 2 bytes/s) have 1/2, 1/2, 3/2 bytes/s": (
        [1, 2], [0, 0], {(0, 1): [0], (2, 3): [0, 1], (4, 5): [1]},
        [[(0, 1, 3), (2, 3, 3), (4, 5, 3)]], [6, 6, 6, 6, 2, 2],
    ),
    "3 bytes alone until 1 s, then beside 1 late byte: that ends at 3 s, the first at 4 s": (
        [1, 9], [0, 1], {(0, 1): [0], (2, 3): [0, 1]}, [[(0, 1, 3), (2, 3, 1)]], [4, 4, 3, 3],
    ),
    "1, 2 and 3 bytes on one link end at 3, 5 and 6 s": (
        [1], [0], {(0, 1): [0], (2, 3): [0], (4, 5): [0]},
        [[(0, 1, 1), (2, 3, 2), (4, 5, 3)]], [3, 3, 5, 5, 6, 6],
    ),
    # Link 0: 2 bytes of step 0 and 1 of step 1 end at 3 s and 2 s; step 1 of rank 1 takes 1 s.
    "a message of step 1 shares a link with one of step 0: there is no barrier between steps": (
        [1, 1], [0, 0], {(0, 1): [0], (3, 4): [0], (1, 2): [1]},
        [[(0, 1, 2)], [(1, 2, 1), (3, 4, 1)]], [3, 4, 4, 2, 2],
    ),
    "rank 2 is busy until 4 s with step 0, so what rank 1 has for it in step 1 waits: 5 s": (
        [1, 1, 1], [0, 0, 0], {(0, 1): [0], (3, 2): [1], (1, 2): [2]},
        [[(0, 1, 1), (3, 2, 4)], [(1, 2, 1)]], [1, 5, 5, 4],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND.values(), ids=BY_HAND)
def test_messages_share_links_as_computed_by_hand(case: Any) -> None:
    """Max-min fair shares of links, from when a message begins to when it ends, rank by rank."""
    rates, delays, routes, steps, wanted = case
    sent = [[(*message, False) for message in step] for step in steps]
    assert ends(wired(rates, delays, routes), *sent) == [*wanted, 0, 0, 0][:6]


def test_additions_follow_one_another_as_messages_arrive() -> None:
    """At 1 s a byte 1 and 3 bytes that arrive at 1 and 3 s are added by 2 and 6 s, in a row."""
    made = replace(wired([1, 1], [0, 0], {(0, 2): [0], (1, 2): [1]}), gamma=1.0)
    assert ends(made, [(0, 2, 1, True), (1, 2, 3, True)])[:3] == [1, 3, 6]
    assert ends(made, [(0, 2, 2, True), (1, 2, 2, True)])[:3] == [2, 2, 6]
    # What a rank adds of its own comes last.
    assert ends(made, [(0, 2, 1, True), (2, 2, 2, True)])[2] == 4


def test_each_message_costs_both_of_its_ranks_its_overhead_first() -> None:
    """½ s a message: rank 0 posts two, so both set out at 1 s, when rank 1 has long posted one."""
    made = replace(wired([1, 1], [0, 0], {(0, 1): [0], (0, 2): [1]}), overhead=0.5)
    assert ends(made, [(0, 1, 1, False), (0, 2, 1, False)])[:3] == [2, 2, 2]


@pytest.mark.parametrize(("collective", "name"), PAIRS)
def test_steps_that_say_they_are_alike_are(collective: str, name: str) -> None:
    """Equal `Step.signature`: same ranks, counts and additions in the same order, in any form."""
    for n in (2, 3, 4, 6, 8):
        for root in (0, n - 1):
            schedule = drafted(collective, name, n, root=root)
            tables: dict[object, bytes] = {}
            for step in schedule.steps if schedule else ():
                m = step.moves()
                told = np.stack([m.src, m.dst, m.count, m.reduce]).tobytes()
                if step.signature is not None:
                    assert tables.setdefault(step.signature, told) == told


def test_a_large_ring_is_made_of_few_steps() -> None:
    """Rings say that their steps are alike, so a simulation's work does not grow with them."""
    schedule = draft("allreduce", "bidirectional_ring", 64)
    assert len({step.signature for step in schedule.steps}) == 2
    made = build_network("ring:64", 64)
    simulation = Simulation(schedule, spec("allreduce"), made)
    assert simulation.classes.rank.max() == 0
    assert math.isclose(simulation.run(2**20).seconds, 126 * (0.5e-6 + 2**20 / 128 / 25e9))
