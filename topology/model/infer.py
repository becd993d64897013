"""Completes a map that has relations but no tree, for routes and pictures.

Common-ancestor levels are an ultrametric: the devices within PIX of each other are below one
switch, those within PXB below one switch of switches, then a root complex, then a NUMA node. Added
devices and links have the source ``inferred`` and never contradict a stated relation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from topology.model.device import Device, Fact, Kind, Link, LinkKind
from topology.model.map import Map
from topology.model.rates import nvlink_ports
from topology.model.relation import Level

INFERRED = "inferred"


def complete(topology: Map) -> Map:
    """Add a tree above every GPU and NIC, and a link for every stated NVLink.

    A topology that already has both is returned unchanged.
    """
    return _with_links(_with_tree(_adopted(topology)))


def groups(ids: Sequence[str], near: Callable[[str, str], bool]) -> list[list[str]]:
    """Split ids into connected components of ``near``, in order of their first members."""
    left, parts = list(ids), []
    while left:
        group, left = [left[0]], left[1:]
        for member in group:
            joined = [other for other in left if near(member, other)]
            left = [other for other in left if other not in joined]
            group.extend(joined)
        parts.append(sorted(group, key=ids.index))
    return parts


@dataclass
class _Builder:
    """The tree under construction: new inner devices, and the parent of each endpoint."""

    topology: Map
    taken: set[str]
    added: list[Device] = field(default_factory=list)
    parents: dict[str, str] = field(default_factory=dict)

    def add(self, kind: Kind, stem: str, parent: str, index: int | None = None) -> str:
        number = index
        if number is None or f"{stem}{number}" in self.taken:
            number = next(n for n in range(len(self.taken) + 1) if f"{stem}{n}" not in self.taken)
        name = f"{stem}{number}"
        self.taken.add(name)
        fact = Fact("inferred", True, INFERRED)
        self.added.append(Device(name, kind, number, parent=parent, facts=(fact,)))
        return name

    def level(self, a: str, b: str) -> Level:
        """The stated level; if only NVLinks are known, affinities decide: NODE or SYS."""
        stated = self.topology.relation(a, b).level
        if stated is not None:
            return stated
        return (
            Level.NODE
            if self._home(a) is not None and self._home(a) == self._home(b)
            else Level.SYS
        )

    def _home(self, id: str) -> tuple[object, object] | None:
        device = self.topology.device(id)
        home = (device.get("numa_affinity"), device.get("cpu_affinity"))
        return None if home == (None, None) else home

    def hang(self, ids: list[str], parent: str, levels: Sequence[tuple[Level, Kind, str]]) -> None:
        """Put ids below parent, with an inner device per component of a level, widest first."""
        if not levels:
            self.parents.update(dict.fromkeys(ids, parent))
            return
        (level, kind, stem), *rest = levels
        parts = groups(ids, lambda a, b: self.level(a, b) <= level)
        for part in parts:
            # A single device needs no switch of its own, unless there are switches beside it.
            if level is Level.PXB:
                alone = len(groups(part, lambda a, b: self.level(a, b) <= Level.PIX)) == 1
            else:
                alone = level is Level.PIX and len(parts) == 1 and len(part) == 1
            inner = parent if alone else self.inner(kind, stem, parent, part)
            self.hang(part, inner, rest)

    def inner(self, kind: Kind, stem: str, parent: str, part: list[str]) -> str:
        """The device of a component: a known NUMA node that all members name, or a new one."""
        if kind is not Kind.NUMA:
            return self.add(kind, stem, parent)
        nodes = {self.topology.device(id).get("numa_affinity") for id in part} - {None}
        only = str(next(iter(nodes))) if len(nodes) == 1 else ""
        if not only.isdecimal() or len(only) > 9:
            return self.add(kind, stem, parent)
        known = next((n for n in self.topology.of(kind) if n.index == int(only)), None)
        if known is None or known.id in self.parents:
            return self.add(kind, stem, parent, int(only))
        self.parents[known.id] = known.parent or parent
        return known.id


def _adopted(topology: Map) -> Map:
    """Put devices without a parent beside the nearest device that has one, if levels tell."""
    placed = [device for device in topology.endpoints if device.parent is not None]
    parents: dict[str, str] = {}
    for device in topology.endpoints:
        if device.parent is None and placed:
            near = [(topology.relation(device.id, other.id).level, other.id) for other in placed]
            level, other = min(((lv, id) for lv, id in near if lv), default=(Level.SYS, ""))
            above = tuple(topology.ancestors(other)) if level < Level.SYS else ()
            holder = next((d for d in above if d.kind in _HOLDERS[level]), None)
            if level is Level.PXB:
                holder = next((d for d in reversed(above) if d.kind is Kind.BRIDGE), holder)
            if holder is not None:
                parents[device.id] = holder.id
    if not parents:
        return topology
    devices = (
        replace(device, parent=parents.get(device.id, device.parent)) for device in topology.devices
    )
    return replace(topology, devices=tuple(devices))


#: The kinds of the nearest common ancestor of two devices, by their level.
_HOLDERS = {
    Level.PIX: (Kind.BRIDGE,),
    Level.PXB: (Kind.BRIDGE,),
    Level.PHB: (Kind.ROOT, Kind.NUMA),
    Level.NODE: (Kind.NUMA,),
}


def _with_tree(topology: Map) -> Map:
    loose = [device.id for device in topology.endpoints if device.parent is None]
    if not loose:
        return topology
    builder = _Builder(topology, {device.id for device in topology.devices})
    hosts = [host.id for host in topology.of(Kind.HOST) if host.parent is None]
    top = hosts[0] if hosts else "HOST"
    if not hosts:
        top = next(
            id
            for n in range(len(builder.taken) + 1)
            if (id := f"HOST{n or ''}") not in builder.taken
        )
        builder.taken.add(top)
        builder.added.append(Device(top, Kind.HOST, facts=(Fact("inferred", True, INFERRED),)))
    levels = (
        (Level.NODE, Kind.NUMA, "NUMA"),
        (Level.PHB, Kind.ROOT, "ROOT"),
        (Level.PXB, Kind.BRIDGE, "PCIE"),
        (Level.PIX, Kind.BRIDGE, "PCIE"),
    )
    builder.hang(loose, top, levels)
    devices = tuple(
        replace(device, parent=builder.parents[device.id])
        if device.id in builder.parents
        else device
        for device in topology.devices
    )
    return replace(topology, devices=(*devices, *builder.added))


def _with_links(topology: Map) -> Map:
    linked = {
        frozenset((link.a, link.b)) for link in topology.links if link.kind is LinkKind.NVLINK
    }
    switched = {end for pair in linked for end in pair if topology.device(end).kind is Kind.SWITCH}
    gpus = [gpu.id for gpu in topology.gpus]
    counts = {} if switched else _stated_counts(topology, linked)
    if not counts:
        return topology
    total, most = dict.fromkeys(gpus, 0), dict.fromkeys(gpus, 0)
    for pair, n in counts.items():
        for gpu in pair:
            total[gpu] += n
            most[gpu] = max(most[gpu], n)
    ports = {g: max(nvlink_ports(topology.device(g).whole("sm")), most[g]) for g in gpus}
    links: list[Link] = []
    switches: list[Device] = []
    for island in groups(
        [gpu for gpu in gpus if total[gpu]], lambda a, b: _count(counts, a, b) > 0
    ):
        inside = [(a, b) for a, b in combinations(island, 2) if _count(counts, a, b)]
        whole = len(inside) == len(island) * (len(island) - 1) // 2
        if whole and any(total[gpu] > ports[gpu] for gpu in island):
            # More links than a GPU has ports: they are shared, so a switch is between the GPUs.
            fact = Fact("inferred", True, INFERRED)
            switch = Device(f"NVS{len(switches)}", Kind.SWITCH, len(switches), facts=(fact,))
            switches.append(switch)
            links += [Link(LinkKind.NVLINK, gpu, switch.id, INFERRED, most[gpu]) for gpu in island]
        else:
            links += [
                Link(LinkKind.NVLINK, a, b, INFERRED, _count(counts, a, b)) for a, b in inside
            ]
    return replace(
        topology, devices=(*topology.devices, *switches), links=(*topology.links, *links)
    )


def _stated_counts(topology: Map, linked: set[frozenset[str]]) -> dict[tuple[str, str], int]:
    """Stated numbers of NVLinks of pairs without a link, in order of the pairs."""
    return {
        (a, b): count
        for a, b in topology.stated(topology.gpus, "nvlinks")
        if frozenset((a, b)) not in linked and (count := topology.nvlinks(a, b))
    }


def _count(counts: dict[tuple[str, str], int], a: str, b: str) -> int:
    return counts.get((a, b), 0) or counts.get((b, a), 0)
