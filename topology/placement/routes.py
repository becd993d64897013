"""Routes between all pairs of GPUs of a map, ranked from the best class to the worst.

A machine of thousands of GPUs has millions of pairs but few kinds of them, so one pair of each kind
is examined. A signature has everything that `topology.model.topology` and `topology.model.graph`
use: the hops up from each end, where the two paths up meet, NVLinks, and the statements about the
pair.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

import numpy as np
import numpy.typing as npt

from busbar.errors import ProbeError
from busbar.units import format_count
from topology.model.device import Kind, LinkKind, slot
from topology.model.graph import Hop, capability
from topology.model.map import Map
from topology.model.measured import matrix
from topology.model.topology import Level, Topology

#: Measured rates within this share of the greatest of them count as equal, so that noise does not
#: rank sets.
ALIKE = 0.1
_WORDS = {
    Level.PIX: "at most one PCIe bridge",
    Level.PXB: "several PCIe bridges, not the host bridge",
    Level.PHB: "a PCIe host bridge",
    Level.NODE: "several host bridges of one NUMA node",
    Level.SYS: "the link between NUMA nodes",
}


@dataclass(frozen=True)
class GpuRoute:
    """The route between two GPUs, equal in both directions.

    ``bandwidth``: bytes per second of its narrowest hop in one direction; 0 if nothing connects the
    two; the measured rate if that is less or the link is assumed. ``hops``: the route from the
    lower to the higher index. ``p2p``: False if a source states that peer access does not work, so
    that data goes through host memory.
    """

    text: str
    bandwidth: float
    level: Level | None
    nvlinks: int
    p2p: bool
    hops: tuple[Hop, ...]

    @property
    def key(self) -> tuple[bool, float, int]:
        """Sorts routes from best to worst: with P2P first, then by bandwidth, then by nearness."""
        far = 60 if self.level is None else int(self.level)
        return (not self.p2p, -self.bandwidth, 0 if self.nvlinks else far)

    @property
    def words(self) -> str:
        """``PIX, at most one PCIe bridge`` or ``NV2, 2 NVLinks``."""
        if self.nvlinks:
            text = f"{self.text}, {format_count(self.nvlinks, 'NVLink')}"
        elif self.level is None:
            text = "a route that no source describes"
        else:
            text = f"{self.text}, {_WORDS[self.level]}"
        return text if self.p2p else f"{text}, without P2P"


class GpuRoutes:
    """The routes between some GPUs of a topology, by their positions in ``ids``.

    ``rank[i][j]``: the class of a route, 0 for the best, of ``classes`` in total. The diagonal is
    rank 0 and never used.
    """

    def __init__(self, topology: Topology, ids: Sequence[str]) -> None:
        self.topology = topology
        self.ids = tuple(ids)
        size = len(self.ids)
        self._routes: dict[tuple[int, int], GpuRoute] = {}
        self.measured = _measured(topology, self.ids)
        upper = np.triu_indices(size, 1)
        kinds = codes(topology, self.ids, self.measured)[upper]
        _, firsts, kind = np.unique(kinds, return_index=True, return_inverse=True)
        # One pair of each kind, the first, in the order of the pairs.
        routes = [self.between(int(upper[0][at]), int(upper[1][at])) for at in firsts]
        keys = sorted({route.key for route in routes})
        number = {key: rank for rank, key in enumerate(keys)}
        self.classes = len(keys)
        table = np.zeros((size, size), np.int64)
        table[upper] = np.array([number[route.key] for route in routes], np.int64)[kind.ravel()]
        self.rank: list[list[int]] = (table + table.T).tolist()

    def between(self, i: int, j: int) -> GpuRoute:
        """The route between two positions, in either order."""
        pair = (min(i, j), max(i, j))
        if pair not in self._routes:
            a, b = self.ids[pair[0]], self.ids[pair[1]]
            self._routes[pair] = _route(self.topology, a, b, self.measured.get(pair))
        return self._routes[pair]

    def route(self, i: int, j: int) -> tuple[Hop, ...]:
        """The hops from position i to position j, in that direction."""
        hops = self.between(i, j).hops
        return hops if i < j else tuple(hop.reversed() for hop in reversed(hops))

    def direct_nvlinks(self, i: int, j: int) -> int:
        """The number of NVLinks between two positions without a switch in between."""
        hops = self.between(i, j).hops
        return hops[0].count if len(hops) == 1 and hops[0].kind == "nvlink" else 0


def _route(topology: Topology, a: str, b: str, measured: float | None) -> GpuRoute:
    relation = topology.relation(a, b)
    try:
        hops = topology.route(a, b)
    except ProbeError:
        return GpuRoute("?", 0.0, None, 0, True, ())
    rate = min(hop.bandwidth for hop in hops)
    guess = any(hop.assumed for hop in hops if hop.bandwidth == rate)
    if measured is not None and (guess or measured < rate):
        rate = measured
    peers = topology.peers(a, b)
    return GpuRoute(relation.text, rate, relation.level, relation.nvlinks, peers, hops)


def _measured(topology: Topology, ids: Sequence[str]) -> dict[tuple[int, int], float]:
    """Bytes/s of measured pairs by positions (lower, higher); similar rates become their median."""
    at = {id: n for n, id in enumerate(ids)}
    rates: dict[tuple[int, int], float] = {}
    for (a, b), cell in matrix(topology, "bandwidth").items():
        if a in at and b in at and a != b and cell.value > 0:
            pair = (min(at[a], at[b]), max(at[a], at[b]))
            rates[pair] = min(cell.value, rates.get(pair, cell.value))
    ordered = sorted(rates, key=lambda pair: -rates[pair])
    alike: list[list[tuple[int, int]]] = []
    for pair in ordered:
        if alike and rates[pair] >= (1 - ALIKE) * rates[alike[-1][0]]:
            alike[-1].append(pair)
        else:
            alike.append([pair])
    typical = [median(rates[pair] for pair in group) for group in alike]
    return {pair: rate for group, rate in zip(alike, typical, strict=True) for pair in group}


Codes = npt.NDArray[np.int64]
_STATED = ("level", "nvlinks", "p2p_read", "p2p_access")
_CPU = ("arch", "vendor", "family", "cpu_model")


def codes(
    topology: Topology, ids: Sequence[str], measured: Mapping[tuple[int, int], float] | None = None
) -> Codes:
    """A number for each pair, shape (n, n), valid above the diagonal; similar pairs have the same.

    ``measured``: measured rates by pairs of positions.
    """
    graph = topology.graph
    climbs = [graph.climb(id) for id in ids]
    above = [[device.id for device in topology.ancestors(id)][::-1] for id in ids]
    ends, inferred = _links(topology, ids), _links(graph.topology, ids)
    cards = [slot(str((d := topology.device(id)).busid or d.get("card") or id)) for id in ids]
    places = _numbers(
        (
            tuple(map(_hop, climb)), tuple(_kinds(graph.topology, climb)),
            tuple(topology.device(one).kind for one in up), nvlinks, more, bool(card),
        )
        for climb, up, nvlinks, more, card in zip(climbs, above, ends, inferred, cards, strict=True)
    )  # fmt: skip
    pairs = places[:, None] * len(ids) + places[None, :]
    for tops in ([[h.b for h in climb][::-1] for climb in climbs], above, [[c] for c in cards]):
        depth = max(map(len, tops), default=0)
        pairs = pairs * (depth + 1) + _common_depth(tops, depth)
    kinds = np.unique(pairs, return_inverse=True)[1].reshape(pairs.shape)
    both: Codes = kinds * (len(ids) ** 2 + 1) + _of_pairs(topology, ids, measured or {})
    return both


def _hop(hop: Hop) -> Hashable:
    return hop.kind, hop.bandwidth, hop.count, hop.assumed


def _kinds(topology: Map, climb: Sequence[Hop]) -> Iterable[Hashable]:
    """The kinds of the devices above; of NUMA nodes also the CPU, which affects the route."""
    for hop in climb:
        device = topology.device(hop.b)
        numa = device.kind is Kind.NUMA
        yield device.kind, tuple(device.get(name) for name in _CPU) if numa else ()


def _links(topology: Map, ids: Sequence[str]) -> list[Hashable]:
    """Each GPU's links to non-GPUs, the facts that set their rate, and whether it has NVLinks."""
    links: dict[str, set[Hashable]] = {id: set() for id in ids}
    linked: set[str] = set()
    for link in topology.links:
        for end, other in ((link.a, link.b), (link.b, link.a)):
            if end in links and link.kind is LinkKind.NVLINK:
                linked.add(end)
            if end in links and topology.device(other).kind is not Kind.GPU:
                links[end].add((other, link.kind, link.count, link.version, link.rate))
    about = [
        (capability(gpu), gpu.get("nvlink_version"), gpu.get("gcn"))
        for gpu in map(topology.device, ids)
    ]
    return [
        (facts, frozenset(links[id]), id in linked) for id, facts in zip(ids, about, strict=True)
    ]


def _common_depth(tops: Sequence[Sequence[str]], depth: int) -> Codes:
    """The length of the common beginning of each two lists, shape (n, n)."""
    number = {name: n for n, name in enumerate({name for names in tops for name in names})}
    same = np.ones((len(tops), len(tops)), np.bool_)
    counts = np.zeros(same.shape, np.int64)
    for level in range(depth):
        # A device without a name at a level has nothing in common with others there.
        here = [
            number[names[level]] if level < len(names) else -1 - n for n, names in enumerate(tops)
        ]
        same &= np.equal.outer(np.array(here), np.array(here))
        counts += same
    return counts


def _of_pairs(
    topology: Topology, ids: Sequence[str], measured: Mapping[tuple[int, int], float]
) -> Codes:
    """A number for the statements about a pair and its direct links; 0 if there are none."""
    at = {id: n for n, id in enumerate(ids)}
    facts: dict[tuple[int, int], list[Hashable]] = {at: [rate] for at, rate in measured.items()}
    for pair in topology.pairs:
        if pair.a in at and pair.b in at and pair.fact.name in _STATED:
            i, j = at[pair.a], at[pair.b]
            key = (min(i, j), max(i, j))
            facts.setdefault(key, []).append((i < j, pair.fact.name, pair.fact.value))
    for origin, links in enumerate((topology.links, topology.graph.topology.links)):
        for link in links:
            if link.a in at and link.b in at:
                i, j = sorted((at[link.a], at[link.b]))
                facts.setdefault((i, j), []).append(
                    (origin, link.kind, link.count, link.version, link.rate)
                )
    codes_ = np.zeros((len(ids), len(ids)), np.int64)
    if facts:
        where = np.array(list(facts))
        codes_[where[:, 0], where[:, 1]] = 1 + _numbers(map(tuple, facts.values()))
    return codes_


def _numbers(things: Iterable[Hashable]) -> Codes:
    """Numbers for hashable objects; equal objects have the same number."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(thing, len(known)) for thing in things], np.int64)


Flow = tuple[int, int]


@dataclass(frozen=True)
class Bottleneck:
    """The limiting link: ``flows`` share it in that direction, each with ``rate`` bytes/s."""

    hop: Hop
    flows: int
    rate: float


class DirectedLinks:
    """The directed links that flows use, the flows over each link, and the limits of pairs.

    A measured pair gets at most its measured rate. An assumed link carries at least the rate that
    was measured over it. Links inside a NUMA node ("memory") are left out: they are no bottleneck.
    Two flows over one link get half of it each; the two directions of a link are independent.
    Routes are computed at the first use by a flow.
    """

    def __init__(self, routes: GpuRoutes) -> None:
        self._routes = routes
        self.hops: list[Hop] = []
        self._number: dict[tuple[str, str, str], int] = {}
        self._crossed: dict[Flow, tuple[int, ...] | None] = {}
        self._least: dict[tuple[str, str, str], float] = {}
        for (i, j), rate in routes.measured.items():
            for hop in (*routes.route(i, j), *routes.route(j, i)):
                if hop.assumed and rate > hop.bandwidth:
                    key = (hop.a, hop.b, hop.kind)
                    self._least[key] = max(rate, self._least.get(key, 0.0))

    def rates(self, patterns: Sequence[Sequence[Flow]]) -> npt.NDArray[np.float64]:
        """The bytes per second that every flow of a pattern gets at least, shape (patterns,).

        0 if a flow has no route, infinite if no flow leaves its NUMA node.
        """
        return np.array([self._rate(flows) for flows in patterns], np.float64)

    def bottleneck(self, flows: Sequence[Flow]) -> Bottleneck | None:
        """The link that limits these flows, the first of equals; None if there is none."""
        load = self._load(flows)
        if not load:
            return None
        place = min(load, key=lambda at: (self.hops[at].bandwidth / load[at], at))
        hop = self.hops[place]
        rate, pair = min(((self._most(flow), flow) for flow in flows), default=(inf, (0, 0)))
        if rate < hop.bandwidth / load[place]:
            a, b = (self._routes.ids[at] for at in pair)
            return Bottleneck(Hop(a, b, "measured", rate), 1, rate)
        return Bottleneck(hop, load[place], hop.bandwidth / load[place])

    def _most(self, flow: Flow) -> float:
        """The measured rate of a single flow; infinite if it was not measured."""
        return self._routes.measured.get((min(flow), max(flow)), inf)

    def _rate(self, flows: Sequence[Flow]) -> float:
        load = self._load(flows)
        if load is None:
            return 0.0
        shared = min((self.hops[at].bandwidth / n for at, n in load.items()), default=inf)
        return min(shared, *map(self._most, flows))

    def _load(self, flows: Iterable[Flow]) -> dict[int, int] | None:
        """The number of flows over each used link; None if a flow has no route."""
        load: dict[int, int] = {}
        for flow in flows:
            crossed = self._crossed[flow] if flow in self._crossed else self._cross(flow)
            if crossed is None:
                return None
            for place in crossed:
                load[place] = load.get(place, 0) + 1
        return load

    def _cross(self, flow: Flow) -> tuple[int, ...] | None:
        route, crossed = self._routes.route(*flow), []
        for hop in route:
            if hop.kind != "memory":
                place = self._number.setdefault((hop.a, hop.b, hop.kind), len(self._number))
                if place == len(self.hops):
                    least = self._least.get((hop.a, hop.b, hop.kind))
                    known = hop if least is None else Hop(hop.a, hop.b, "measured", least)
                    self.hops.append(known)
                crossed.append(place)
        self._crossed[flow] = tuple(crossed) if route else None
        return self._crossed[flow]


def ring_flows(order: Sequence[int]) -> list[Flow]:
    """Flows from each member to the next, and from the last to the first."""
    return [(a, b) for a, b in zip(order, [*order[1:], *order[:1]], strict=True) if a != b]


def pair_flows(order: Sequence[int]) -> list[Flow]:
    """Both directions between the first and the second, the third and the fourth, and so on."""
    pairs = list(zip(order[::2], order[1::2], strict=True))
    return [*pairs, *((b, a) for a, b in pairs)]


def all_flows(order: Sequence[int]) -> list[Flow]:
    """Flows from each member to all others."""
    return [(a, b) for a in order for b in order if a != b]
