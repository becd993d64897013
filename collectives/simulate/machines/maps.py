"""Machines from maps: any `topology.model.Topology` of GPUs, or one with what was measured."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import isfinite
from statistics import median

import numpy as np

from collectives.errors import Unsupported
from collectives.simulate.machines.machine import NO_LINK, Ids, Links, Machine, Numbers
from topology.model import Device, Kind, ProbeError, Topology
from topology.sweep import swept

__all__ = ["from_file", "from_map"]

LATENCY_US = 0.5


def from_file(name: str, latency_us: float = LATENCY_US) -> Machine:
    """The machine of a file that ``python -m topology --from`` reads.

    Raises Unsupported for one that cannot be read, or that has neither GPUs nor measured ranks.
    """
    from topology.gather import gather

    try:
        return from_map(gather([name])[0], name, latency_us)
    except ProbeError as error:
        raise Unsupported(f"--machine {error}") from None


def from_map(topology: Topology, name: str = "map", latency_us: float = LATENCY_US) -> Machine:
    """A map as a machine: measured ranks where it has them, else its GPUs.

    GPU i is the place of rank i. Messages take `Topology.route`; a hop has the bandwidth that the
    map gives it, in both directions each, and ``latency_us``. Between measured ranks every pair has
    its own way with the measured latency and bandwidth; where both directions at once were measured
    to be slower than twice one, they share that. A sweep of sizes in the map gives the rates of large
    messages that have just been written, as a collective's have, and that of additions, which take
    no time without one. Raises Unsupported without ranks or GPUs.
    """
    ranks = tuple(device for device in topology.of(Kind.RANK) if _measured(topology, device))
    if ranks:
        return _from_pairs(topology, ranks, name)
    if topology.gpus:
        return _from_routes(topology, topology.gpus, name, latency_us * 1e-6)
    raise Unsupported(f"{name}: neither GPUs nor measured ranks to be the places of ranks")


def _measured(topology: Topology, rank: Device) -> bool:
    return any(pair.a == rank.id and pair.fact.name == "bandwidth" for pair in topology.pairs)


class _Wires:
    """Links as they are met, and every pair's way."""

    def __init__(self, places: tuple[str, ...]) -> None:
        self.nodes = {id: number for number, id in enumerate(places)}
        self.found: dict[tuple[str, str, str], int] = {}
        self.columns: list[tuple[int, int, float, float]] = []
        self.ways: dict[tuple[int, int], list[int]] = {}

    def link(self, a: str, b: str, kind: str, rate: float, latency: float) -> int:
        """The number of a link, a new one where it was not met before."""
        if not (rate > 0 and isfinite(rate) and latency >= 0):
            raise Unsupported(
                f"between {a} and {b}: {rate:g} bytes/s and {latency:g} s are no link"
            )
        key = (a, b, kind)
        if key not in self.found:
            self.found[key] = len(self.columns)
            ends = (self.nodes.setdefault(id, len(self.nodes)) for id in (a, b))
            self.columns.append((*ends, rate, latency))  # type: ignore[arg-type]
        return self.found[key]

    def machine(self, name: str, nranks: int) -> Machine:
        longest = max(map(len, self.ways.values()), default=0)
        table = np.full((nranks, nranks, longest), NO_LINK, np.int32)
        for pair, way in self.ways.items():
            table[pair][: len(way)] = way

        def router(src: Numbers, dst: Numbers) -> Ids:
            return table[src, dst]

        tail, head, rate, latency = np.array(self.columns, float).reshape(-1, 4).T
        links = Links(tail.astype(np.int32), head.astype(np.int32), rate, latency)
        return Machine(name, nranks, len(self.nodes), links, router, names=tuple(self.nodes))


def _from_routes(
    topology: Topology, places: tuple[Device, ...], name: str, latency: float
) -> Machine:
    wires = _Wires(tuple(device.id for device in places))
    for (i, a), (j, b) in permutations(enumerate(places), 2):
        wires.ways[i, j] = [
            wires.link(hop.a, hop.b, hop.kind, hop.bandwidth, latency)
            for hop in topology.route(a.id, b.id)
        ]
    return wires.machine(name, len(places))


def _number(topology: Topology, a: str, b: str, fact: str) -> float | None:
    value = topology.pair(a, b, fact)
    return float(value) if isinstance(value, int | float) else None


def _from_pairs(topology: Topology, places: tuple[Device, ...], name: str) -> Machine:
    wires, large = _Wires(tuple(device.id for device in places)), _Large(topology)
    for (i, a), (j, b) in permutations(enumerate(places), 2):
        rate = _number(topology, a.id, b.id, "bandwidth")
        delay = _number(topology, a.id, b.id, "latency")
        if rate is None or delay is None:
            raise Unsupported(f"{name}: nothing was measured from {a.id} to {b.id}")
        both = _number(topology, a.id, b.id, "bandwidth_both")
        rate = large.rate(a.id, b.id, "trip", delay) or rate
        swapped = large.rate(a.id, b.id, "swap", delay)
        both = 2 * swapped if swapped else both
        wires.ways[i, j] = [wires.link(a.id, b.id, "", rate, delay)]
        if both is not None and both < 2 * rate:
            middle = f"{min(i, j)}|{max(i, j)}"
            wires.ways[i, j].append(wires.link(middle, middle, "both", both, 0.0))
    return replace(wires.machine(name, len(places)), gamma=large.gamma())


# Sizes that are large: within this factor of the largest that was measured.
_NEAR = 16


class _Large:
    """What a map's sweep tells of large messages; nothing without a sweep.

    A time per byte is the median over the large sizes, as one size is timed few times. A pair's
    times hold for either direction.
    """

    def __init__(self, topology: Topology) -> None:
        times = {
            (one.a, one.b, one.quantity, one.nbytes): median(one.seconds) for one in swept(topology)
        }
        most = max((nbytes for *_, nbytes in times), default=0)
        self._times = {key: found for key, found in times.items() if key[3] * _NEAR >= most}

    def rate(self, a: str, b: str, quantity: str, latency: float) -> float | None:
        """Bytes per second of a message beyond its latency, as a trip or each way of a swap."""
        each = [
            (seconds - latency) / nbytes
            for (one, other, kind, nbytes), seconds in self._times.items()
            if kind == quantity and {one, other} == {a, b}
        ]
        beta = median(each or [0.0])
        return 1 / beta if beta > 0 else None

    def gamma(self) -> float:
        """Seconds per byte that adding a message takes beyond receiving it; 0 where nothing says it.

        The median over pairs and sizes of what a swap with additions takes beyond one without.
        """
        found = [
            (seconds - self._times[a, b, "swap", nbytes]) / nbytes
            for (a, b, kind, nbytes), seconds in self._times.items()
            if kind == "add" and (a, b, "swap", nbytes) in self._times
        ]
        return max(0.0, median(found or [0.0]))
