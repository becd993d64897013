"""Which predictor answers for a machine, and what each says that it does not cover."""

from __future__ import annotations

import numpy as np
import pytest

from busbar.errors import Unsupported
from collectives.predict.fit import Fit
from collectives.predict.interface import CollectivePredictor, Operation
from collectives.predict.machine import Costs, LinkCosts, Machine, NcclGraph, NcclSystem, one_class
from collectives.predict.named import build_network, machine_from_ports
from collectives.predict.nccl import NcclPredictor, machine_from_log
from collectives.predict.ports import PortPredictor
from collectives.predict.predictor import FitPredictor, choose_predictor
from collectives.predict.shm import SharedMemoryPredictor
from collectives.predict.simulation import NetworkPredictor
from collectives.schedule.catalogue import draft
from tests.collectives.predict.test_shm import LINK as SHARED

LINK = LinkCosts.assumed(1e-6, 1e-9, "by hand")
COSTS = Machine(one_class(), [LINK])
NETWORK = Machine(network=build_network("ring:4", 4))
NCCL = Machine(nccl=NcclSystem(90, 8, {"ring": NcclGraph(4, 20.0, 20.0)}))
RING = Operation("allreduce", "ring", 4)
BACKENDS = {
    "shm": (SharedMemoryPredictor, Machine(one_class(), [SHARED]), RING),
    "ports": (PortPredictor, COSTS, RING),
    "network": (NetworkPredictor, NETWORK, RING),
    "nccl": (NcclPredictor, NCCL, Operation("allreduce", "library", 8)),
}


@pytest.mark.parametrize("name", BACKENDS)
def test_a_machine_gets_the_predictor_of_what_it_knows(name: str) -> None:
    """Rule: costs over shared memory come first, then costs, then a network, then NCCL's model."""
    kind, machine, operation = BACKENDS[name]
    predictor = choose_predictor(machine)
    assert type(predictor) is kind and predictor.name == name
    assert predictor.refusal(operation) == ""
    seconds = predictor.seconds(operation, [1 << 10, 1 << 20])
    assert seconds.shape == (2,) and 0 < seconds[0] < seconds[1] < np.inf


@pytest.mark.parametrize("name", BACKENDS)
def test_a_machine_without_what_is_needed_is_refused(name: str) -> None:
    """Rule: a predictor says what a machine lacks; `seconds` raises the same sentence."""
    kind, _, operation = BACKENDS[name]
    predictor: CollectivePredictor = kind(Machine())
    reason = predictor.refusal(operation)
    assert reason
    with pytest.raises(Unsupported) as raised:
        predictor.seconds(operation, [8])
    assert str(raised.value) == reason


def test_shared_memory_has_no_bound_of_ports() -> None:
    """Rule: where one pass reads from many ranks, no time is said that no algorithm can beat."""
    _, machine, _ = BACKENDS["shm"]
    assert choose_predictor(machine).one_port_bound("allreduce", 4, [1 << 20]) is None
    assert choose_predictor(COSTS).one_port_bound("allreduce", 4, [1 << 20]) is not None


@pytest.mark.parametrize("label", ["library", "", "x.xml", "no_such", "ring:what=3"])
@pytest.mark.parametrize("name", ["shm", "ports", "network"])
def test_what_has_no_schedule_is_refused(name: str, label: str) -> None:
    """Rule: a library's row, a file and an unknown name have no schedule to follow."""
    kind, machine, _ = BACKENDS[name]
    assert kind(machine).refusal(Operation("allreduce", label, 4))


def test_nccl_answers_for_its_library_alone() -> None:
    """Rule: NCCL's model covers ``library`` of its collectives, where it has a graph."""
    predictor = NcclPredictor(NCCL)
    assert "ring" in predictor.refusal(RING)
    assert "alltoall" in predictor.refusal(Operation("alltoall", "library", 8))
    assert predictor.refusal(Operation("allgather", "library", 8)) == ""
    bare = Machine(nccl=NcclSystem(90, 8))
    assert "no graph" in NcclPredictor(bare).refusal(Operation("allreduce", "library", 8))
    with pytest.raises(Unsupported, match="nChannels"):
        machine_from_log("nothing", 90, 8, 1)


def test_more_ranks_than_places_are_refused() -> None:
    """Rule: a network that is too small is named with its places, before a schedule is built."""
    reason = NetworkPredictor(NETWORK).refusal(Operation("allreduce", "ring", 5))
    assert reason.startswith("ring 4 has places for 4 ranks, not for 5; name a larger machine")


def test_a_label_and_its_schedule_are_one_operation() -> None:
    """Rule: a row's label with parameters and root gives the times of the schedule it names."""
    schedule = draft("broadcast", "chain", 4, root=2, segments=3)
    predictor, sizes = PortPredictor(COSTS), [1000, 1 << 20]
    by_label = predictor.seconds(Operation("broadcast", "chain:segments=3", 4, root=2), sizes)
    by_schedule = predictor.seconds(Operation.of(schedule, "broadcast", root=2), sizes)
    assert (by_label == by_schedule).all()


def test_a_fit_answers_for_every_number_of_ranks() -> None:
    """Rule: costs are those of the nearest number of ranks, the predictor of a number is kept."""
    fit = Fit(tuple(Costs({"node": LINK}, start=n * 1e-6, ranks=n) for n in (2, 8)))
    predictor = FitPredictor(fit)
    assert predictor.on(2) is predictor.on(2)
    assert [predictor.on(n).machine.start for n in (2, 8, 64)] == [2e-6, 8e-6, 8e-6]


def test_ports_of_hosts_have_half_of_the_latency_each() -> None:
    """Rule: a message crosses two ports, so it takes the latency once and its bytes at the rate."""
    machine = machine_from_ports(2, 1e9, 4e-6, buffer=0.0, burst=0.0)
    (seconds,) = NetworkPredictor(machine).seconds(Operation("broadcast", "flat", 2), [1000])
    assert seconds == pytest.approx(5e-6)


@pytest.mark.parametrize("ranks", [4, 8])
def test_latencies_of_a_step_add_up_at_a_port_without_bursts(ranks: int) -> None:
    """Rule: as docs/model.md says, without measured bursts ``ps`` has 2(P-1) latencies in cost.

    In the simulator a step's messages are posted at once, so it has 2, and the bytes take as long.
    """
    latency, rate, size = 14e-6, 12.5e9, 1 << 18
    one_by_one = PortPredictor(Machine(one_class(), [LinkCosts.assumed(latency, 1 / rate, "")]))
    network = build_network(f"fattree:{ranks}:gbs=12.5:latency_us=7", ranks)
    operation = Operation("allreduce", "ps", ranks)
    wire = 2 * (ranks - 1) * size / rate
    (cost,) = one_by_one.seconds(operation, [size])
    assert cost == pytest.approx(2 * (ranks - 1) * latency + wire)
    (simulated,) = NetworkPredictor(Machine(network=network)).seconds(operation, [size])
    assert simulated == pytest.approx(2 * latency + wire)
    # Where a rank has a link to each other rank, the simulated time is below the one-port bound.
    bound = one_by_one.one_port_bound("allreduce", ranks, [1 << 26])
    own = Machine(network=build_network(f"full:{ranks}:gbs=12.5:latency_us=14", ranks))
    (several,) = NetworkPredictor(own).seconds(
        Operation("allreduce", "sharded_ps", ranks), [1 << 26]
    )
    assert bound is not None and several < bound[0] / 2
