"""Times expected on ports with a rate limit, and their growth with the number of hosts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log, nan
from statistics import linear_regression, median
from typing import NamedTuple

from bench.cluster.commands import SOCKET
from busbar.errors import Unsupported
from collectives.predict.compare import port_volume
from collectives.predict.interface import Operation
from collectives.predict.named import machine_from_ports
from collectives.predict.simulation import NetworkPredictor
from topology.model.measured import matrix
from topology.model.topology import Topology

#: MPI's own algorithm: without a schedule here there is neither a textbook time nor a simulation.
LIBRARY = "library"


class LawPoint(NamedTuple):
    """A measured time: the median of iterations in seconds, the least and the greatest.

    ``slower``: the median of the slower launch, if there were two.
    """

    algorithm: str
    hosts: int
    size: int
    seconds: float
    least: float
    most: float
    wrong: int
    slower: float | None = None
    collective: str = "allreduce"


class Ports(NamedTuple):
    """Links between hosts: measured bytes/s, measured seconds of an empty message.

    ``burst``: bytes that a port passes at once after a pause, as configured.
    """

    rate: float
    latency: float
    burst: float


def binary(name: str, hosts: int) -> str:
    """An algorithm's name with parameters for ``hosts`` hosts: hierarchical has levels of two."""
    if name != "hierarchical":
        return name
    levels = max(1, hosts.bit_length() - 1)
    return f"{name}:dims={'x'.join('2' * levels)}" if levels > 1 else name


class Compared(NamedTuple):
    """A measured time with the textbook's and the simulated seconds; nan for the library."""

    point: LawPoint
    law: float
    model: float


def compared(points: Sequence[LawPoint], ports: Ports, rate: float) -> list[Compared]:
    """Every point with its expected times. ``rate``: configured bytes/s of a port."""
    return [
        Compared(p, nan, nan)
        if p.algorithm == LIBRARY
        else Compared(
            p,
            textbook(p.algorithm, p.hosts, p.collective) * p.size / rate,
            simulated(p.algorithm, p.hosts, p.size, ports, p.collective),
        )
        for p in points
    ]


def _operation(collective: str, name: str, hosts: int) -> Operation:
    label = binary(name, hosts) if collective == "allreduce" else name
    return Operation(collective, label, hosts)


def why_not(collective: str, name: str, hosts: int) -> str:
    """Return why an algorithm does not run on this number of hosts; empty if it does."""
    try:
        if name != LIBRARY:
            _ = _operation(collective, name, hosts).schedule
    except Unsupported as error:
        return str(error)
    return ""


def textbook(name: str, hosts: int, collective: str = "allreduce") -> float:
    """The bandwidth term of an algorithm: see `collectives.predict.compare.port_volume`."""
    return port_volume(_operation(collective, name, hosts))


def simulated(
    name: str, hosts: int, size: int, ports: Ports, collective: str = "allreduce"
) -> float:
    """Simulated seconds: one switch, one link per host, half of the latency on each link.

    MPI counts data in a socket buffer as sent. A full buffer accepts more when it is two thirds
    full (Linux, include/net/sock.h, sk_stream_is_writeable).
    """
    machine = machine_from_ports(
        hosts, ports.rate, ports.latency, buffer=SOCKET * 2 / 3, burst=ports.burst
    )
    operation = _operation(collective, name, hosts)
    return float(NetworkPredictor(machine).seconds(operation, [size])[0])


def fit(measured: Topology, burst: float) -> Ports:
    """The ports of hosts: medians over the pairs of `topology measure`."""
    rates = [cell.value for cell in matrix(measured, "bandwidth").values()]
    delays = [cell.value for cell in matrix(measured, "latency").values()]
    return Ports(median(rates), median(delays), burst)


def exponent(seconds: Mapping[int, float]) -> float | None:
    """The exponent of P in a time's growth: the slope of log time over log P, by least squares."""
    if len(seconds) < 2:
        return None
    return linear_regression([*map(log, seconds)], [*map(log, seconds.values())]).slope
