"""The classes of links between ranks, from a topology or by default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from busbar.cpulist import members
from topology.model.topology import Device, Kind, Level, Topology

NETWORK = "network"
#: Classes from near to far. NVLinks are classed by their number, as NV4 or NV18.
CLASSES = ("core complex", "socket", "node", "NV", "PIX", "PXB", "PHB", "NODE", "SYS", NETWORK)
Index = NDArray[np.int64]


@dataclass(frozen=True)
class PlacedRanks:
    """Ranks on equal nodes: rank r is device r mod k of node r div k, where a node has k devices.

    ``classes``: the names of the classes of links; ``table``: of shape (k, k), which class two
    devices of a node have between them, as an index. ``across``: the class between nodes.
    ``devices`` names what ranks are.
    """

    classes: tuple[str, ...]
    table: Index
    across: int
    devices: tuple[str, ...] = ()

    def links(self, src: Index, dst: Index) -> Index:
        """The index of the class of link for pairs of ranks, of any shape."""
        k = len(self.table)
        same = src // k == dst // k
        return np.where(same, self.table[src % k, dst % k], self.across)

    def between(self, nranks: int) -> list[int]:
        """The classes that so many ranks have between them, as indices in order."""
        k = len(self.table)
        inside = self.table[: min(k, nranks), : min(k, nranks)]
        found = set(inside[~np.eye(len(inside), dtype=bool)].tolist())
        return sorted(found | ({self.across} if nranks > k else set()))


def one_class(name: str = NETWORK) -> PlacedRanks:
    """A machine on which all ranks have the same link to each other."""
    return PlacedRanks((name,), np.zeros((1, 1), np.int64), 0)


def placed(topology: Topology) -> PlacedRanks:
    """The ranks of a topology: its measured ranks, else its GPUs, else its cores, by index.

    More ranks than that are further nodes of the same kind. Raises ValueError for a topology
    that has none of them.
    """
    devices = topology.of(Kind.RANK) or topology.gpus or topology.of(Kind.CORE)
    if not devices:
        raise ValueError("it has neither ranks nor GPUs nor cores")
    find = Classes(topology)
    names = [["" for _ in devices] for _ in devices]
    for i, a in enumerate(devices):
        for j, b in enumerate(devices[:i]):
            names[i][j] = names[j][i] = find.of(a, b)
    return tabled(names, [device.id for device in devices])


def tabled(names: Sequence[Sequence[str]], devices: Sequence[str]) -> PlacedRanks:
    """A machine from the names of the classes between devices, "" from one to itself."""
    known = {name for row in names for name in row if name} | {NETWORK}
    classes = sorted(known, key=lambda name: (distance(name), name))
    at = {name: i for i, name in enumerate(classes)}
    table = np.array([[at.get(name, 0) for name in row] for row in names], np.int64)
    return PlacedRanks(tuple(classes), table, at[NETWORK], tuple(devices))


def distance(name: str) -> int:
    """The place of a class in `CLASSES`, their number for one that is not there."""
    head = "NV" if name[:2] == "NV" else name
    return CLASSES.index(head) if head in CLASSES else len(CLASSES)


class Classes:
    """Classes of pairs of devices of one topology.

    GPUs have their matrix cell, with SYS where nothing is known; ranks and cores have the nearest
    thing that all the CPUs of both are in. Ranks share a core complex when one last-level cache
    serves all the CPUs that both may run on.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._homes = [
            (name, _inside(topology, home))
            for kind, name in ((Kind.CACHE, "core complex"), (Kind.PACKAGE, "socket"))
            for home in topology.of(kind)
        ]
        self._cpus: dict[str, frozenset[int]] = {}

    def of(self, a: Device, b: Device) -> str:
        """The class of a pair."""
        if Kind.GPU in (a.kind, b.kind):
            relation = self._topology.relation(a.id, b.id)
            if relation.nvlinks:
                return f"NV{relation.nvlinks}"
            return (relation.level or Level.SYS).name
        hosts = [self._topology.ancestor(d.id, Kind.HOST) for d in (a, b)]
        if hosts[0] is not None and hosts[1] is not None and hosts[0].id != hosts[1].id:
            return NETWORK
        first, second = self._of(a), self._of(b)
        if first and second:
            for name, inside in self._homes:
                if first | second <= inside:
                    return name
        return "node"

    def _of(self, device: Device) -> frozenset[int]:
        if device.id not in self._cpus:
            self._cpus[device.id] = _cpus(device)
        return self._cpus[device.id]


def _cpus(device: Device) -> frozenset[int]:
    text = device.get("cpus") or device.get("cpu_affinity")
    return frozenset(members(str(text)) or ()) if text else frozenset()


def _inside(topology: Topology, device: Device) -> frozenset[int]:
    """The CPUs of a device, or of all that hangs on it."""
    own = _cpus(device)
    if own:
        return own
    return frozenset().union(*(_inside(topology, d) for d in topology.children(device.id)))
