"""Links with bandwidths, and routes between two devices; maps without a tree are completed first.

Routing follows NCCL's preference: NVLink, directly or through an NVSwitch, before PCIe; a GPU with
a chip-to-chip link leaves its module over that link. Bandwidths come from ``topology.model.rates``.

Where a map has relations but no tree (`complete`): common-ancestor levels are an ultrametric, so
the devices within PIX of each other are one switch, those within PXB one switch of switches, then a
root complex, then a NUMA node. What is added is marked ``inferred`` in its source and never
contradicts a relation that was stated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

from busbar.errors import ProbeError
from topology.model import rates
from topology.model.device import Device, Fact, Kind, Level, Link, LinkKind
from topology.model.map import Map
from topology.model.rates import nvlink_ports, published

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
        """The nearest common ancestor of two devices, as stated, or NODE or SYS by affinities.

        Sources state none if only the pair's NVLinks are known.
        """
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
        """Put devices below a parent, with a device between for each group that shares an ancestor.

        ``levels``: the kinds of common ancestor, widest first, each with the kind and the name of
        the device that stands for it.
        """
        if not levels:
            self.parents.update(dict.fromkeys(ids, parent))
            return
        (level, kind, stem), *rest = levels
        parts = groups(ids, lambda a, b: self.level(a, b) <= level)
        for part in parts:
            # Lone devices need no switch of their own, unless switches stand beside them.
            if level is Level.PXB:
                alone = len(groups(part, lambda a, b: self.level(a, b) <= Level.PIX)) == 1
            else:
                alone = level is Level.PIX and len(parts) == 1 and len(part) == 1
            inner = parent if alone else self.inner(kind, stem, parent, part)
            self.hang(part, inner, rest)

    def inner(self, kind: Kind, stem: str, parent: str, part: list[str]) -> str:
        """The device above a group: a NUMA node that all its members name, or a new device."""
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
    """Put devices without a parent beside the nearest device that has one.

    It is the one with the nearest common ancestor; without a stated one a device stays alone.
    """
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
    ports = {g: max(nvlink_ports(capability(topology.device(g))), most[g]) for g in gpus}
    links: list[Link] = []
    switches: list[Device] = []
    for island in groups(
        [gpu for gpu in gpus if total[gpu]], lambda a, b: _count(counts, a, b) > 0
    ):
        inside = [(a, b) for a, b in combinations(island, 2) if _count(counts, a, b)]
        whole = len(inside) == len(island) * (len(island) - 1) // 2
        if whole and any(total[gpu] > ports[gpu] for gpu in island):
            # More links than a GPU has: they are shared, so there is a switch in between.
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


INNER = (Kind.HOST, Kind.PACKAGE, Kind.NUMA)


@dataclass(frozen=True)
class Hop:
    """One link of a route, from ``a`` to ``b``.

    ``bandwidth``: bytes per second in that direction, over all ``count`` parallel links. ``kind``:
    nvlink, c2c, pcie, cpu or memory (inside a NUMA node, never the bottleneck). ``assumed``: the
    source did not know the link; defaults: gen3 x16, the oldest NVLink from sm 70 on with as many
    links a GPU, 10 GB/s between CPUs.
    """

    a: str
    b: str
    kind: str
    bandwidth: float
    count: int = 1
    assumed: bool = False

    def reversed(self) -> Hop:
        """The same link in the other direction."""
        return Hop(self.b, self.a, self.kind, self.bandwidth, self.count, self.assumed)

    @property
    def link(self) -> frozenset[str]:
        """The two ends, as a key for the physical link; each direction has its own bandwidth."""
        return frozenset((self.a, self.b))


class Graph:
    """The link graph of a topology, completed if the topology has only relations."""

    def __init__(self, topology: Map) -> None:
        self.topology = complete(topology)

    @cached_property
    def hops(self) -> tuple[Hop, ...]:
        """Every link once: the branches of the tree, the CPU mesh, NVLinks and C2C links."""
        tree = tuple(
            self._branch(device)
            for device in self.topology.devices
            if device.parent is not None
            and device.kind not in (Kind.CACHE, Kind.CORE, Kind.MIG, Kind.RANK)
        )
        numas = self.topology.of(Kind.NUMA)
        mesh = tuple(
            self._link_of_sockets(a, b)
            for i, a in enumerate(numas)
            for b in numas[i + 1 :]
            if self._host(a) == self._host(b)
        )
        return (*tree, *mesh, *(self._link(link) for link in self.topology.links))

    def route(self, a: str, b: str) -> tuple[Hop, ...]:
        """The hops from a to b; empty if a is b. Raises ProbeError if there is no route."""
        self.topology.device(a), self.topology.device(b)
        return () if a == b else self._nvlink(a, b) or self._over_tree(a, b)

    @cached_property
    def most_nvlinks(self) -> int:
        """The most NVLinks of a GPU."""
        counts: Counter[str] = Counter()
        for link in self.topology.links:
            if link.kind is LinkKind.NVLINK:
                counts.update({link.a: link.count, link.b: link.count})
        return max((counts[gpu.id] for gpu in self.topology.gpus), default=0)

    # -- internals

    @cached_property
    def _adjacent(self) -> dict[str, dict[str, Hop]]:
        hops: dict[str, dict[str, Hop]] = {}
        for link in self.topology.links:
            if link.kind in (LinkKind.NVLINK, LinkKind.C2C):
                hop = self._link(link)
                hops.setdefault(hop.a, {})[hop.b] = hop
                hops.setdefault(hop.b, {})[hop.a] = hop.reversed()
        return hops

    def _nvlink(self, a: str, b: str) -> tuple[Hop, ...]:
        mine, theirs = self._adjacent.get(a, {}), self._adjacent.get(b, {})
        if self.topology.pair(a, b, "nvlinks") == 0:
            return ()
        if b in mine and mine[b].kind == "nvlink":
            return (mine[b],)
        shared = [s for s in mine if s in theirs and self.topology.device(s).kind is Kind.SWITCH]
        if not shared:
            return ()
        # Traffic is spread over all switches of the plane; the first represents them.
        up, down = (sum(side[s].bandwidth for s in shared) for side in (mine, theirs))
        counts = [sum(side[s].count for s in shared) for side in (mine, theirs)]
        assumed = mine[shared[0]].assumed
        return (
            Hop(a, shared[0], "nvlink", up, counts[0], assumed),
            Hop(shared[0], b, "nvlink", down, counts[1], assumed),
        )

    def _over_tree(self, a: str, b: str) -> tuple[Hop, ...]:
        up, down = self.climb(a), self.climb(b)
        above_b = [hop.b for hop in down]
        path: list[Hop] = []
        here = a
        for hop in (*up, None):
            if here == b:
                return tuple(path)
            if here in above_b:
                back = down[: above_b.index(here) + 1]
                return (*path, *(h.reversed() for h in reversed(back)))
            if hop is None:
                break
            cross = self._cross(here, above_b, b)
            if cross is not None:
                end = cross.b
                back = down[: above_b.index(end) + 1] if end != b else []
                return (*path, cross, *(h.reversed() for h in reversed(back)))
            path.append(hop)
            here = hop.b
        raise ProbeError("topology", f"nothing connects {a} and {b}; add a source that knows both")

    def _cross(self, here: str, above_b: list[str], b: str) -> Hop | None:
        device = self.topology.device(here)
        if device.kind is not Kind.NUMA:
            return None
        others = (self.topology.device(id) for id in (b, *above_b))
        other = next((d for d in others if d.kind is Kind.NUMA), None)
        if other is None or other.id == here or self._host(other) != self._host(device):
            return None
        return self._link_of_sockets(device, other)

    def _host(self, device: Device) -> Device | None:
        return self.topology.ancestor(device.id, Kind.HOST)

    def climb(self, id: str) -> list[Hop]:
        """The hops from a device to the root of its tree, over its chip-to-chip link if any."""
        device = self.topology.device(id)
        c2c = [hop for hop in self._adjacent.get(id, {}).values() if hop.kind == "c2c"]
        path = c2c[:1]
        device = self.topology.device(path[0].b) if path else device
        while device.parent is not None:
            path.append(self._branch(device))
            device = self.topology.device(device.parent)
        return path

    def _branch(self, device: Device) -> Hop:
        parent = str(device.parent)
        if device.kind in (*INNER, Kind.ROOT, Kind.CACHE, Kind.CORE, Kind.MIG, Kind.RANK):
            return Hop(device.id, parent, "memory", rates.LOCAL)
        gen, width, assumed = pcie_expected(device)
        bandwidth, now = rates.pcie(gen, width), device.number("pcie_rate")
        if assumed and now is not None and now * rates.PLANNED > bandwidth:
            # Some sources state only the signalled rate; an idle link may be faster, never slower.
            bandwidth, assumed = now * rates.PLANNED, False
        return Hop(device.id, parent, "pcie", bandwidth, width, assumed)

    def _link_of_sockets(self, a: Device, b: Device) -> Hop:
        arch, vendor = (
            str(a.get(name) or self.topology.get(name) or "") for name in ("arch", "vendor")
        )
        family, model = (a.get(name) or self.topology.get(name) for name in ("family", "cpu_model"))
        rate = rates.between_cpus(
            arch,
            vendor,
            family if isinstance(family, int) else None,
            model if isinstance(model, int) else None,
        )
        return Hop(a.id, b.id, "cpu", rate or rates.ASSUMED_CPU, assumed=rate is None)

    def _link(self, link: Link) -> Hop:
        rate, assumed = link.rate, False
        if link.kind is LinkKind.NVLINK:
            ends = (self.topology.device(link.a), self.topology.device(link.b))
            sms = [sm for end in ends if (sm := capability(end)) is not None]
            versions = [v for end in ends if (v := end.whole("nvlink_version")) is not None]
            version = link.version if link.version is not None else min(versions, default=None)
            amd = [str(gcn) for gcn in (end.get("gcn") for end in ends) if gcn]
            known = bool(sms) or version is not None
            if amd:
                rate = rates.xgmi(amd[0])
            elif known or rate is None:
                rate = rates.nvlink(min(sms, default=None), version, self.most_nvlinks)
            else:
                rate *= rates.NVLINK_PLANNED
            assumed = not (amd or known) and link.rate is None
        elif rate is None:
            rate, assumed = rates.C2C_RATE if link.kind is LinkKind.C2C else rates.ASSUMED_CPU, True
        return Hop(link.a, link.b, link.kind.value, rate * link.count, link.count, assumed)


def capability(device: Device) -> int | None:
    """A GPU's compute capability, such as 90, as stated, or else that of its model."""
    stated = device.whole("sm")
    known = published(device.get("model") or device.name) if stated is None else None
    return known.sm if known is not None else stated


def pcie_expected(device: Device) -> tuple[int, int, bool]:
    """The PCIe generation and width to expect, and whether they are assumed.

    The generation is the maximum of device and port, because an idle GPU lowers its generation and
    raises it under load. The width is the present one, because lanes do not come back by
    themselves. Otherwise the published values of the model are assumed, or else gen3 x16.
    """

    def least(*names: str) -> int | None:
        return min((int(n) for name in names if (n := device.number(name))), default=None)

    gen = least("pcie_gen_max" if device.number("pcie_gen_max") else "pcie_gen", "port_gen_max")
    width = least("pcie_width", "pcie_width_max", "port_width_max")
    usual = published(device.get("model") or device.name) or rates.ASSUMED_PCIE
    return gen or usual[0], width or usual[1], gen is None or width is None
