"""Flows that share links: the bottleneck link under a pattern of traffic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import numpy.typing as npt

from topology.model.graph import Hop
from topology.placement.routes import GpuRoutes

Flow = tuple[int, int]


@dataclass(frozen=True)
class Bottleneck:
    """The link that decides: ``flows`` share it in that direction, each gets ``rate`` bytes/s."""

    hop: Hop
    flows: int
    rate: float


class DirectedLinks:
    """The directed links that flows use, the flows that cross each, and the limits of pairs.

    A measured pair gets no more than was measured. An assumed link carries at least what was
    measured over it. Links inside a NUMA node ("memory") are left out: they are no bottleneck. Two
    flows over one link get half of it each; the two directions of a link do not disturb each other.
    Routes are computed when a flow first takes them.
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
        """Return bytes per second that every flow of a pattern gets at least, shape (patterns,).

        0 where a flow has no route, infinite where no flow leaves its NUMA node.
        """
        return np.array([self._rate(flows) for flows in patterns], np.float64)

    def bottleneck(self, flows: Sequence[Flow]) -> Bottleneck | None:
        """The link that decides for these flows, the first of equals; None where there is none."""
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
        """How many flows cross each link that is crossed; None where a flow has no route."""
        load: dict[int, int] = {}
        for flow in flows:
            crossed = self._crossed[flow] if flow in self._crossed else self._cross(flow)
            if crossed is None:
                return None
            for place in crossed:
                load[place] = load.get(place, 0) + 1
        return load

    def _cross(self, flow: Flow) -> tuple[int, ...] | None:
        route, found = self._routes.route(*flow), []
        for hop in route:
            if hop.kind != "memory":
                place = self._number.setdefault((hop.a, hop.b, hop.kind), len(self._number))
                if place == len(self.hops):
                    least = self._least.get((hop.a, hop.b, hop.kind))
                    known = hop if least is None else replace(hop, bandwidth=least, assumed=False)
                    self.hops.append(known)
                found.append(place)
        self._crossed[flow] = tuple(found) if route else None
        return self._crossed[flow]


def ring_flows(order: Sequence[int]) -> list[Flow]:
    """Everyone to the next, the last to the first; two members send to each other."""
    return [(a, b) for a, b in zip(order, [*order[1:], *order[:1]], strict=True) if a != b]


def pair_flows(order: Sequence[int]) -> list[Flow]:
    """Both directions between the first and the second, the third and the fourth, and so on."""
    pairs = list(zip(order[::2], order[1::2], strict=True))
    return [*pairs, *((b, a) for a, b in pairs)]


def all_flows(order: Sequence[int]) -> list[Flow]:
    """Everyone to everyone else."""
    return [(a, b) for a in order for b in order if a != b]
