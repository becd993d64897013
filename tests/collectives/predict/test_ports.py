"""Predicted times: closed forms, hand-made cases, and a naive reading of the rule."""

from __future__ import annotations

import random
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import Unsupported
from collectives.predict.compare import compare_algorithms, find_crossovers
from collectives.predict.machine import (
    Costs,
    Curve,
    LinkCosts,
    Machine,
    RankClasses,
    one_class,
    rank_classes_of,
)
from collectives.predict.maps import resolve_costs
from collectives.predict.ports import PortPredictor
from collectives.schedule.catalogue import algorithms, draft, spec
from collectives.schedule.cost import cost
from collectives.schedule.moves import Buffer, Move, Slot
from collectives.schedule.schedule import Schedule
from tests.collectives.cases import lg
from tests.collectives.predict.predicting import seconds
from tests.collectives.predict.test_times import FORMS
from tests.conftest import examples
from topology.model.topology import Device, Fact, Kind, LinkKind, PairFact, Topology
from topology.model.topology import Link as Wire

A, B, G = 3e-6, 2e-10, 5e-11
LINK = LinkCosts.assumed(A, B, "by hand", G)
FLAT = Machine(one_class(), [LINK])
N = 1 << 22


@pytest.mark.parametrize("p", [2, 4, 8, 16, 64])
def test_closed_forms(p: int) -> None:
    """Rule: on links that nothing shares, the textbook's formulas come out to 1e-9.

    Where a port has one message at a time they are those of the simulator.
    """
    in_turn = (
        *(("allreduce", n) for n in ("ring", "tree", "recursive_doubling", "halving_doubling")),
        *(("allgather", "ring"), ("allgather", "doubling")),
        *(("alltoall", "pairwise"), ("broadcast", "binomial")),
    )
    cases = {which: FORMS[which](p, A, 0.0, B, G, N) for which in in_turn} | {
        ("allreduce", "ps"): (p - 1) * (2 * A + (2 * B + G) * N),
        ("broadcast", "flat"): (p - 1) * (A + B * N),
        ("broadcast", "chain:segments=8"): (p - 2 + 8) * (A + B * N / 8),
        ("reduce_scatter", "halving"): lg(p) * A + (B + G) * N * (p - 1) / p,
    }
    for (collective, label), formula in cases.items():
        name, _, parameter = label.partition(":segments=")
        given_ = {"segments": int(parameter)} if parameter else {}
        schedule = draft(collective, name, p, **given_)  # type: ignore[arg-type]
        found = seconds(schedule, collective, FLAT, [N])
        assert found[0] == pytest.approx(formula, rel=1e-9), label


CACHED = LinkCosts(
    Curve((1e-6, 4e-6), (1e-9, 5e-10), (5000.0,)),
    Curve((2e-6,), (1.5e-9,)),
    Curve((2e-6,), (2e-9,)),
    Curve((3e-6,), (1.6e-9,)),
    "by hand",
    Curve((1e-6,), (1e-10,)),
    Curve((1e-6,), (2e-10,)),
)


@pytest.mark.parametrize("link", [LINK, CACHED], ids=["plain", "cached"])
@pytest.mark.parametrize("collective", ["allreduce", "broadcast", "allgather", "reduce_scatter"])
def test_nothing_beats_the_one_port_bound(collective: str, link: LinkCosts) -> None:
    """Rule: no algorithm is predicted below Chan et al.'s bound, for powers of two or not."""
    sizes = [256 * 4**k for k in range(9)]
    machine = Machine(one_class(), [link])
    for n in (2, 3, 5, 8, 12, 16):
        bound = PortPredictor(machine).one_port_bound(collective, n, sizes)
        assert bound is not None
        for name in algorithms(collective):
            try:
                schedule = draft(collective, name, n)
            except Unsupported:
                continue
            found = seconds(schedule, collective, machine, sizes)
            assert (found >= bound * (1 - 1e-9)).all(), (name, n)


# -- the rule, read naively

IN = Slot(Buffer.OUT, 0)


def _schedule(nranks: int, steps: list[list[tuple[int, int, int]]]) -> Schedule:
    """Moves (src, dst, chunk), each of one of four chunks of an all-reduce's vector."""
    moves = [
        [Move(a, b, Slot(Buffer.OUT, c), Slot(Buffer.OUT, c)) for a, b, c in step] for step in steps
    ]
    return Schedule.of(nranks, 4, moves, vector=True)


def naive(
    nranks: int, steps: list[list[tuple[int, int, int]]], machine: Machine, size: int
) -> float:
    """Message by message, as the module's docstring says; chunks of one pair join if neighbours."""
    ready = [0.0] * nranks
    for step in steps:
        messages: list[list[float]] = []
        for a, b, c in sorted(step, key=lambda m: (m[0], m[1])):
            last = messages[-1] if messages else None
            if last and last[:2] == [a, b] and last[3] == c:
                last[2] += size / 4
                last[3] = c + 1
            else:
                messages.append([a, b, size / 4, c + 1])
        sends, gets = {int(m[0]) for m in messages}, {int(m[1]) for m in messages}
        done = list(ready)
        for end in (0, 1):
            for rank in range(nranks):
                mine = [m for m in messages if m[end] == rank]
                busy, lead = -inf, 0.0
                for a, b, nbytes, _ in mine:
                    src, dst = ready[int(a)], ready[int(b)]
                    both = np.array([a in gets or b in sends])
                    link = machine.costs[
                        int(machine.classes.links(np.array([int(a)]), np.array([int(b)]))[0])
                    ]
                    alone = float(link.alone(np.array([nbytes]), both)[0])
                    more = float(link.further(np.array([nbytes]), both)[0])
                    post = float(link.posted(np.array([nbytes]))[0])
                    if np.isnan(post):
                        busy, lead = max(busy, src, dst) + more, max(lead, alone - more)
                    elif end == 0:
                        busy = max(busy, src) + post
                    else:
                        busy, lead = (
                            max(busy, src, dst + post - alone) + more,
                            max(lead, alone - more),
                        )
                if mine:
                    done[rank] = max(done[rank], busy + lead)
        ready = done
    return max(ready)


CURVED = LinkCosts(
    Curve((1e-6, 4e-6), (1e-9, 5e-10), (5000.0,)),
    Curve((2e-6,), (1.5e-9,)),
    Curve((2e-6,), (2e-9,)),
    Curve((3e-6,), (4e-9,)),
    "by hand",
)


@examples(60)
@given(st.integers(2, 6), st.integers(0, 10**6), st.integers(1, 1 << 9) | st.integers(1, 1 << 16))
def test_ports_and_order_are_as_told(nranks: int, seed: int, chunk: int) -> None:
    """Rule: messages of a port go in order, the first at its whole cost, others as bursts.

    Senders of eager messages wait for nobody.
    """
    draw = random.Random(seed)
    steps = []
    for _ in range(draw.randint(1, 4)):
        every = [(a, b) for a in range(nranks) for b in range(nranks) if a != b]
        some = draw.sample(every, draw.randint(1, min(6, len(every))))
        steps.append([(a, b, draw.randrange(4)) for a, b in some])
    table = np.array([[draw.randrange(2) for _ in range(nranks)] for _ in range(nranks)])
    machine = Machine(RankClasses(("x", "y"), table, 0), [LINK, CURVED])
    size = 16 * chunk
    found = seconds(_schedule(nranks, steps), "allreduce", machine, [size])
    assert found[0] == pytest.approx(naive(nranks, steps, machine, size), rel=1e-9)


def test_what_was_left_alone_is_cheaper() -> None:
    """Rule: input costs `still`; what a rank has written, or others read, does not."""
    machine, m = Machine(one_class(), [CACHED]), 1 << 20
    still = 1e-6 + 1e-10 * m / 2
    swap = 2e-6 + 1.5e-9 * m / 2
    half = {"reduce_scatter": still + 1e-10 * m / 2, "allgather": still}
    for collective, time in half.items():
        found = seconds(draft(collective, "ring", 2), collective, machine, [m])[0]
        assert found == pytest.approx(time)
    # In an all-reduce others read the sums, and then they are sent: `add` and `swap`.
    ring = seconds(draft("allreduce", "ring", 2), "allreduce", machine, [m])[0]
    assert ring == pytest.approx(still + (2e-9 - 1.5e-9) * m / 2 + swap)
    # Everyone's whole vector at once: nobody reads the sum.
    once = seconds(draft("allreduce", "one_shot", 2), "allreduce", machine, [m])[0]
    assert once == pytest.approx(1e-6 + 2e-10 * m)


def test_start_and_ranks_alone() -> None:
    """Rule: one rank takes what every collective takes; that comes on top where data comes back."""
    late = Machine(one_class(), [LINK], start=7e-6)
    assert seconds(draft("allreduce", "ring", 1), "allreduce", late, [64])[0] == 7e-6
    found = [
        seconds(draft("allreduce", "ring", 4), "allreduce", p, [4096])[0] for p in (FLAT, late)
    ]
    assert found[1] - found[0] == pytest.approx(7e-6)
    chains = [
        seconds(draft("broadcast", "chain", 4), "broadcast", p, [4096])[0] for p in (FLAT, late)
    ]
    assert chains[0] == chains[1]


def test_crossovers_are_where_the_lines_cross() -> None:
    """Rule: doubling wins small messages, halving-doubling large ones, from where the forms say."""
    p, sizes = 8, [2**k for k in range(6, 25)]
    found, refused = compare_algorithms(
        "allreduce",
        ["recursive_doubling", "halving_doubling"],
        p,
        predictor=PortPredictor(FLAT),
        sizes=sizes,
    )
    assert not refused
    (cross,) = find_crossovers("allreduce", found, PortPredictor(FLAT), sizes)
    # lg p (A + (B + G) n) = 2 lg p A + (2B + G) n (p-1)/p
    exact = lg(p) * A / (lg(p) * (B + G) - (2 * B + G) * (p - 1) / p)
    assert cross.better == "halving_doubling"
    assert cross.size == pytest.approx(exact, rel=0.04)


def test_what_is_too_large_is_left_out_with_a_reason() -> None:
    """Rule: with thousands of ranks cheap schedules are costed, others are named and not built."""
    found, refused = compare_algorithms("allreduce", ["recursive_doubling", "one_shot"], 1 << 14)
    assert [c.name for c in found] == ["recursive_doubling"]
    assert found[0].cost.steps == 14
    assert "moves" in refused["one_shot"]


def test_counting_is_the_same_without_keeping_steps() -> None:
    """Rule: costs do not hold all steps in memory, which thousands of ranks would not allow."""
    schedule = draft("allreduce", "ring", 64)
    cost(schedule, spec("allreduce"))
    assert "all_moves" not in vars(schedule)


# -- machines


def _two_gpus_a_socket() -> Topology:
    gpus = [Device(f"GPU{i}", Kind.GPU, i) for i in range(4)]
    wires = [Wire(LinkKind.NVLINK, f"GPU{i}", f"GPU{i + 1}", "hand", 2) for i in (0, 2)]
    far = [
        PairFact(f"GPU{a}", f"GPU{b}", Fact("level", "SYS", "hand")) for a in (0, 1) for b in (2, 3)
    ]
    near = [PairFact(f"GPU{i}", f"GPU{i + 1}", Fact("level", "PIX", "hand")) for i in (0, 2)]
    return Topology(tuple(gpus), tuple(wires), (*far, *near))


def test_classes_of_gpus_and_nodes() -> None:
    """Rule: pairs are NVLinked, behind PCIe levels, or on other nodes, which are alike."""
    machine = rank_classes_of(_two_gpus_a_socket())
    ranks = np.arange(8)
    names = [[machine.classes[k] for k in machine.links(np.full(8, r), ranks)] for r in (0, 5)]
    assert names[0][1:] == ["NV2", "SYS", "SYS", *["network"] * 4]
    assert names[1][:5] == [*["network"] * 4, "NV2"]


def test_measured_bandwidth_comes_before_rates() -> None:
    """Rule: what was measured is used, then rates, then assumptions, and each says which it is."""
    bare = _two_gpus_a_socket()
    measured = tuple(
        PairFact(f"GPU{a}", f"GPU{b}", Fact("bandwidth", 3e9, "hand"))
        for a, b in ((0, 2), (2, 0), (1, 3))
    )
    topology = Topology(bare.devices, bare.links, (*bare.pairs, *measured))
    machine = rank_classes_of(topology)
    links, notes = resolve_costs(machine, None, topology)
    sys, nvlink, network = (machine.classes.index(k) for k in ("SYS", "NV2", "network"))
    assert links[sys].trip.beta == (1 / 3e9,) and "3 GB/s (measured)" in notes[sys]
    assert "link rates" in notes[nvlink] and "assumed" in notes[network]
    fitted, said = resolve_costs(machine, Costs({"PHB": LINK}), topology)
    assert fitted[sys] is LINK and "not in the fit; as PHB" in said[sys]


def test_classes_of_ranks() -> None:
    """Rule: ranks have a core complex, a socket or a node in common, or only the network."""
    host = [Device("HOST", Kind.HOST), Device("PKG0", Kind.PACKAGE, 0, parent="HOST")]
    host += [Device("PKG1", Kind.PACKAGE, 1, parent="HOST")]
    for index, cpus in enumerate(("0-1", "2-3", "4-5")):
        parent = f"PKG{index // 2}"
        host.append(
            Device(
                f"L3:{index}", Kind.CACHE, index, parent=parent, facts=(Fact("cpus", cpus, "x"),)
            )
        )
    places = ("0", "1", "2", "4", "0-5")
    host += [
        Device(f"RANK{i}", Kind.RANK, i, parent="HOST", facts=(Fact("cpu_affinity", c, "x"),))
        for i, c in enumerate(places)
    ]
    machine = rank_classes_of(Topology(tuple(host)))
    found = [machine.classes[k] for k in machine.table[0, 1:]]
    assert found == ["core complex", "socket", "node", "node"]
