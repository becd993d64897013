"""Assumed costs of unmeasured links: rates of the topology, published latencies.

Latencies are the hop latencies of NCCL 2.30's tuner for a ring with the Simple protocol; rates of
NVLink and PCIe are what `topology.model.rates` plans with. Everything taken from here says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from collectives.model.costs import Costs, LinkCosts
from collectives.model.machine import NETWORK, PlacedRanks, distance
from collectives.model.measured import two_points
from topology.measured.matrix import expected
from topology.model.topology import Kind, Topology

_NVLINK_S, _PCIE_S, _NETWORK_S, _HOST_S = 3.4e-6, 5.7e-6, 14e-6, 1e-6
_NETWORK_RATE, _HOST_RATE = 12.5e9, 10e9


def resolve(
    machine: PlacedRanks, costs: Costs | None, topology: Topology | None
) -> tuple[list[LinkCosts], list[str]]:
    """A link for every class of a machine, and a line for each that says where it is from.

    A fit comes first, then what the topology has measured, then its rates, then assumptions. A
    class that the fit lacks gets the fit's nearest other one.
    """
    near = costs.links if costs is not None else two_points(topology) if topology else {}
    links, notes = [], []
    for name in machine.classes:
        if name in near:
            link, said = near[name], near[name].said
        elif costs is not None and (other := _nearest(name, list(near))) is not None:
            link, said = near[other], f"not in the fit; as {other}"
        else:
            link = _assumed(name, machine, topology)
            said = link.said
        links.append(link)
        notes.append(f"{name}: {said}")
    return links, notes


def _nearest(name: str, known: Sequence[str]) -> str | None:
    """The next farther class that is known, so as not to promise too much, else the farthest."""
    far = sorted(known, key=distance)
    beyond = (one for one in far if distance(one) >= distance(name))
    return next(beyond, far[-1] if far else None)


def _assumed(name: str, machine: PlacedRanks, topology: Topology | None) -> LinkCosts:
    if name == NETWORK:
        rate, said = _network(topology)
        return _link(_NETWORK_S, rate, "NCCL 2.30's network hop", said)
    if name in ("core complex", "socket", "node"):
        return _link(_HOST_S, _HOST_RATE, "assumed", "assumed")
    found = None if topology is None else _rate(machine, name, topology)
    alpha, hop = (_NVLINK_S, "NVLink") if name[:2] == "NV" else (_PCIE_S, "PCIe")
    rate, said = found or (_NETWORK_RATE, "assumed")
    return _link(alpha, rate, f"NCCL 2.30's {hop} hop", said)


def _link(alpha: float, rate: float, latency: str, bandwidth: str) -> LinkCosts:
    return LinkCosts.assumed(
        alpha,
        1 / rate,
        f"latency {alpha * 1e6:g} us ({latency}), {rate / 1e9:.4g} GB/s ({bandwidth}), "
        f"additions free",
    )


def _network(topology: Topology | None) -> tuple[float, str]:
    """One rank's share of the rates of the node's network ports; 100 Gbit/s if none states one."""
    if topology is not None:
        rates = [nic.number("net_rate") for nic in topology.of(Kind.NIC)]
        known = [rate for rate in rates if rate]
        ranks = len(topology.gpus) or 1
        if known:
            return sum(known) / max(ranks, len(known)), "a rank's share of the network ports"
    return _NETWORK_RATE, "100 Gbit/s assumed"


def _rate(machine: PlacedRanks, name: str, topology: Topology) -> tuple[float, str] | None:
    """The median bandwidth measured for the class, else the least rate that links promise in it."""
    at, devices = machine.classes.index(name), machine.devices
    pairs = [
        (a, b)
        for i, a in enumerate(devices)
        for j, b in enumerate(devices)
        if i != j and machine.table[i, j] == at
    ]
    measured = [topology.pair(a, b, "bandwidth") for a, b in pairs]
    known = [float(rate) for rate in measured if isinstance(rate, int | float) and rate > 0]
    if known:
        return median(known), "measured"
    rates = [rate for a, b in pairs if (rate := expected(topology, a, b))]
    return (min(rates), "link rates of the topology") if rates else None
