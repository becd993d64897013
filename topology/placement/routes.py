"""Routes between all pairs of GPUs of a map, ranked from the best class to the worst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from busbar.errors import ProbeError
from topology.measured.matrix import matrix
from topology.model.graph import Hop
from topology.model.topology import Level, Topology
from topology.placement.signature import codes

#: Measured rates within this share of the greatest of them are equal, so that noise ranks no sets.
ALIKE = 0.1
#: Answers of P2P queries that say nothing against it: allowed, and unknown.
_P2P_FINE = frozenset({"OK", "U"})
_WORDS = {
    Level.PIX: "at most one PCIe bridge",
    Level.PXB: "several PCIe bridges, not the host bridge",
    Level.PHB: "a PCIe host bridge",
    Level.NODE: "several host bridges of one NUMA node",
    Level.SYS: "the link between NUMA nodes",
}


@dataclass(frozen=True)
class GpuRoute:
    """The route between two GPUs, both directions alike.

    ``bandwidth`` is bytes per second of its narrowest hop in one direction, 0 where nothing
    connects the two, and what was measured where that is less or the link is assumed; ``hops`` is
    the route from the lower to the higher index; ``p2p`` is False where a source says that peer
    access does not work, so that data goes through host memory. ``measured``: whether a measurement
    decides.
    """

    text: str
    bandwidth: float
    level: Level | None
    nvlinks: int
    p2p: bool
    hops: tuple[Hop, ...]
    measured: bool = False

    @property
    def key(self) -> tuple[bool, float, int]:
        """Sorts routes from best to worst: with P2P first, then by bandwidth, then by level."""
        far = 60 if self.level is None else int(self.level)
        return (not self.p2p, -self.bandwidth, 0 if self.nvlinks else far)

    @property
    def words(self) -> str:
        """``PIX, at most one PCIe bridge`` or ``NV2, 2 NVLinks``."""
        if self.nvlinks:
            said = f"{self.text}, {self.nvlinks} NVLink{'s' if self.nvlinks > 1 else ''}"
        elif self.level is None:
            said = "a route that no source describes"
        else:
            said = f"{self.text}, {_WORDS[self.level]}"
        return said if self.p2p else f"{said}, without P2P"

    @property
    def assumed(self) -> bool:
        """Whether the bandwidth leans on a default because no source knew the link."""
        narrow = [hop for hop in self.hops if hop.bandwidth == self.bandwidth]
        return not self.measured and any(hop.assumed for hop in narrow)


class GpuRoutes:
    """The routes between some GPUs of a topology, by their positions in ``ids``.

    ``rank[i][j]`` numbers the classes of routes, 0 the best, out of ``classes``. The diagonal is
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
        found = [self.between(int(upper[0][at]), int(upper[1][at])) for at in firsts]
        keys = sorted({route.key for route in found})
        number = {key: rank for rank, key in enumerate(keys)}
        self.classes = len(keys)
        table = np.zeros((size, size), np.int64)
        table[upper] = np.array([number[route.key] for route in found], np.int64)[kind.ravel()]
        self.rank: list[list[int]] = (table + table.T).tolist()

    def between(self, i: int, j: int) -> GpuRoute:
        """The route between two positions, whichever comes first."""
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
        """NVLinks that lead from one to the other with no switch in between."""
        hops = self.between(i, j).hops
        return hops[0].count if len(hops) == 1 and hops[0].kind == "nvlink" else 0


def _route(topology: Topology, a: str, b: str, found: float | None) -> GpuRoute:
    relation = topology.relation(a, b)
    try:
        hops = topology.route(a, b)
    except ProbeError:
        return GpuRoute("?", 0.0, None, 0, True, ())
    said = {topology.pair(x, y, "p2p_read") for x, y in ((a, b), (b, a))} - {None}
    rate = min(hop.bandwidth for hop in hops)
    guess = any(hop.assumed for hop in hops if hop.bandwidth == rate)
    decides = found is not None and (guess or found < rate)
    return GpuRoute(
        relation.text,
        found if found is not None and decides else rate,
        relation.level,
        relation.nvlinks,
        said <= _P2P_FINE,
        hops,
        decides,
    )


def _measured(topology: Topology, ids: Sequence[str]) -> dict[tuple[int, int], float]:
    """Bytes/s of measured pairs by positions (lower, higher); alike rates are their median."""
    at = {id: n for n, id in enumerate(ids)}
    found: dict[tuple[int, int], float] = {}
    for (a, b), cell in matrix(topology, "bandwidth").items():
        if a in at and b in at and a != b and cell.value > 0:
            pair = (min(at[a], at[b]), max(at[a], at[b]))
            found[pair] = min(cell.value, found.get(pair, cell.value))
    ordered = sorted(found, key=lambda pair: -found[pair])
    alike: list[list[tuple[int, int]]] = []
    for pair in ordered:
        if alike and found[pair] >= (1 - ALIKE) * found[alike[-1][0]]:
            alike[-1].append(pair)
        else:
            alike.append([pair])
    typical = [median(found[pair] for pair in group) for group in alike]
    return {pair: rate for group, rate in zip(alike, typical, strict=True) for pair in group}
