"""What flows leave of the links that they share: the narrowest link under a pattern of traffic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topology.graph import Hop
from topology.placement.ways import Ways

Flow = tuple[int, int]


@dataclass(frozen=True)
class Bottleneck:
    """The link that decides: ``flows`` share it in that direction, each gets ``rate`` bytes/s."""

    hop: Hop
    flows: int
    rate: float


class Links:
    """Every directed link that the ways use, and which flow crosses which.

    Links inside a NUMA node ("memory") are left out: they are no bottleneck. Two flows over one link
    get half of it each; the two directions of a link do not disturb each other.
    """

    def __init__(self, ways: Ways) -> None:
        size = len(ways.ids)
        self.size = size
        self.hops: list[Hop] = []
        number: dict[tuple[str, str, str], int] = {}
        crossed: list[tuple[int, int]] = []
        self.reachable = np.ones((size, size), dtype=np.bool_)
        for i in range(size):
            for j in range(size):
                if i == j:
                    continue
                route = ways.route(i, j)
                self.reachable[i, j] = bool(route)
                for hop in route:
                    if hop.kind == "memory":
                        continue
                    place = number.setdefault((hop.a, hop.b, hop.kind), len(number))
                    if place == len(self.hops):
                        self.hops.append(hop)
                    crossed.append((i * size + j, place))
        self._crosses = np.zeros((size * size, max(1, len(self.hops))), dtype=np.float32)
        for flow, place in crossed:
            self._crosses[flow, place] = 1
        rates = [hop.bandwidth for hop in self.hops] or [np.inf]
        self._bandwidth = np.array(rates, dtype=np.float64)

    def rates(self, patterns: Sequence[Sequence[Flow]]) -> npt.NDArray[np.float64]:
        """Return bytes per second that every flow of a pattern gets at least, shape (patterns,).

        0 where a flow has no way, infinite where no flow leaves its NUMA node.
        """
        found = np.zeros(len(patterns))
        for start in range(0, len(patterns), 4096):
            part = patterns[start : start + 4096]
            load = self._load(part)
            share = np.where(load > 0, self._bandwidth / np.maximum(load, 1), np.inf)
            dead = [not all(self.reachable[flow] for flow in flows) for flows in part]
            found[start : start + len(part)] = np.where(dead, 0.0, share.min(axis=1))
        return found

    def bottleneck(self, flows: Sequence[Flow]) -> Bottleneck | None:
        """The link that decides for these flows, the first of equals; None where there is none."""
        load = self._load([flows])[0]
        if not self.hops or not load.any():
            return None
        share = np.where(load > 0, self._bandwidth / np.maximum(load, 1), np.inf)
        place = int(share.argmin())
        return Bottleneck(self.hops[place], int(load[place]), float(share[place]))

    def _load(self, patterns: Sequence[Iterable[Flow]]) -> npt.NDArray[np.float32]:
        active = np.zeros((len(patterns), self.size * self.size), dtype=np.float32)
        for row, flows in enumerate(patterns):
            for i, j in flows:
                active[row, i * self.size + j] += 1
        loads: npt.NDArray[np.float32] = active @ self._crosses
        return loads


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
