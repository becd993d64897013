"""Machines from maps: a `topology.model.topology.Topology` of GPUs, or one that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from math import isfinite
from statistics import median

import numpy as np

from busbar.errors import ProbeError, Unsupported
from collectives.simulate.machines.machine import Links, Machine, Sized, Weights
from collectives.simulate.machines.routes import NO_LINK, Ids, Numbers
from topology.measured.sweep import swept
from topology.model.topology import Device, Kind, Topology

LATENCY_US = 0.5


def from_file(name: str, latency_us: float = LATENCY_US) -> Machine:
    """The machine of a file that ``python -m topology --from`` reads.

    Raises Unsupported for one that cannot be read, or that has neither GPUs nor measured ranks.
    """
    from topology.sources.gather import gather

    try:
        return from_map(gather([name])[0], name, latency_us)
    except ProbeError as error:
        raise Unsupported(f"--machine {error}") from None


def from_map(topology: Topology, name: str = "map", latency_us: float = LATENCY_US) -> Machine:
    """A map as a machine: measured ranks where it has them, else its GPUs.

    GPU i is the place of rank i. Messages take `Topology.route`; a hop has the bandwidth that the
    map gives it, in both directions each, and ``latency_us``. Between measured ranks every pair has
    its own route with the measured latency and bandwidth; where both directions at once were
    measured to be slower than twice one, they share that. A sweep of sizes in the map gives rates
    by the size of a rank's buffers, of messages that have just been written as a collective's have,
    and the rate of additions, which take no time without one. Raises Unsupported without ranks or
    GPUs.
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
    """Links as they are met, and every pair's route."""

    def __init__(self, places: tuple[str, ...]) -> None:
        self.nodes = {id: number for number, id in enumerate(places)}
        self.found: dict[tuple[str, str, str], int] = {}
        self.columns: list[tuple[int, int, float, float]] = []
        self.routes: dict[tuple[int, int], list[int]] = {}

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
        longest = max(map(len, self.routes.values()), default=0)
        table = np.full((nranks, nranks, longest), NO_LINK, np.int32)
        for pair, route in self.routes.items():
            table[pair][: len(route)] = route

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
        wires.routes[i, j] = [
            wires.link(hop.a, hop.b, hop.kind, hop.bandwidth, latency)
            for hop in topology.route(a.id, b.id)
        ]
    return wires.machine(name, len(places))


def _number(topology: Topology, a: str, b: str, fact: str) -> float | None:
    value = topology.pair(a, b, fact)
    return float(value) if isinstance(value, int | float) else None


def _from_pairs(topology: Topology, places: tuple[Device, ...], name: str) -> Machine:
    wires, sweep = _Wires(tuple(device.id for device in places)), _Sweep(topology)
    # By link: the pair that it is for, and what its rate was measured as.
    measured: dict[int, _Timed] = {}
    for (i, a), (j, b) in permutations(enumerate(places), 2):
        rate = _number(topology, a.id, b.id, "bandwidth")
        delay = _number(topology, a.id, b.id, "latency")
        if rate is None or delay is None:
            raise Unsupported(f"{name}: nothing was measured from {a.id} to {b.id}")
        both = _number(topology, a.id, b.id, "bandwidth_both")
        wires.routes[i, j] = [wires.link(a.id, b.id, "", rate, delay)]
        measured[wires.routes[i, j][0]] = frozenset((a.id, b.id)), "trip"
        swap = frozenset((a.id, b.id)), "swap"
        if sweep.beta(swap, 1.0) or (both is not None and both < 2 * rate):
            middle = f"{min(i, j)}|{max(i, j)}"
            shared = wires.link(middle, middle, "both", both or 2 * rate, 0.0)
            wires.routes[i, j].append(shared)
            measured[shared] = swap
    made = wires.machine(name, len(places))
    if not sweep:
        return made
    bare = made.links.rate

    def sized(nbytes: float) -> Sized:
        found = bare.copy()
        for link, what in measured.items():
            beta = sweep.beta(what, nbytes)
            if beta is not None:
                found[link] = (2.0 if what[1] == "swap" else 1.0) / beta
        return Sized(found, sweep.gamma(nbytes), sweep.weights(nbytes))

    return replace(made, sized=sized, gamma=sweep.gamma(np.inf))


# Two ranks, and what was timed between them.
_Timed = tuple[frozenset[str], str]


class _Sweep:
    """The effects of caches by a map's sweep; false without one.

    A message of m bytes was timed between buffers of m bytes that stay the same, so it says what
    memory gives a collective with buffers of that size, whatever its messages are. Between sizes
    seconds per byte go with the logarithm of the size; beyond the ends they stay. Times of a pair
    hold for either direction.
    """

    def __init__(self, topology: Topology) -> None:
        self._times: dict[_Timed, dict[int, float]] = {}
        self._latency: dict[frozenset[str], float] = {}
        for one in swept(topology):
            pair = frozenset((one.a, one.b))
            self._times.setdefault((pair, one.quantity), {})[one.nbytes] = median(one.seconds)
            self._latency[pair] = _number(topology, one.a, one.b, "latency") or 0.0

    def __bool__(self) -> bool:
        return bool(self._times)

    def beta(self, what: _Timed, nbytes: float) -> float | None:
        """Seconds per byte, beyond the latency, of a message with buffers of so many bytes."""
        latency = self._latency.get(what[0], 0.0)
        times = self._times.get(what, {})
        each = {m: (t - latency) / m for m, t in times.items() if t > latency}
        return _between(each, nbytes) if each else None

    def gamma(self, nbytes: float, add: str = "add", bare: str = "swap") -> float:
        """Seconds per byte that adding a message takes beyond receiving it; the median over pairs.

        That is what a swap with additions takes beyond one without; 0 where neither was timed.
        """
        found = []
        for pair in self._latency:
            sums, swaps = (self._times.get((pair, kind), {}) for kind in (add, bare))
            each = {m: max(0.0, sums[m] - swaps[m]) / m for m in sums.keys() & swaps.keys()}
            found += [_between(each, nbytes)] if each else []
        return median(found or [0.0])

    def weights(self, nbytes: float) -> Weights:
        """Relative times of data that no rank has written, and of sums that no other rank reads."""
        shares = []
        for pair in self._latency:
            still, swap = (self.beta((pair, kind), nbytes) for kind in ("still", "swap"))
            shares += [still / swap] if still and swap else []
        gamma = self.gamma(nbytes)
        timed = gamma and any(quantity == "sum" for _, quantity in self._times)
        calm = self.gamma(nbytes, "sum", "still") / gamma if timed else 1.0
        return Weights(min(1.0, median(shares or [1.0])), min(1.0, calm))


def _between(each: Mapping[int, float], nbytes: float) -> float:
    sizes = sorted(each)
    return float(np.interp(np.log(nbytes), np.log(sizes), [each[size] for size in sizes]))
