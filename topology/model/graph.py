"""Links with bandwidths, and routes between two devices.

Routing follows NCCL's preference: NVLink, directly or through an NVSwitch, before PCIe; a GPU with
a chip-to-chip link leaves its module over that link. Bandwidths come from ``topology.model.rates``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from busbar.errors import ProbeError
from topology.model import rates
from topology.model.device import Device, Kind, Link, LinkKind
from topology.model.infer import complete
from topology.model.map import Map
from topology.model.rates import published

INNER = (Kind.HOST, Kind.PACKAGE, Kind.NUMA)


@dataclass(frozen=True)
class Hop:
    """One link of a route, from ``a`` to ``b``.

    ``bandwidth``: bytes per second in that direction, over all ``count`` parallel links. ``kind``:
    nvlink, c2c, pcie, cpu or memory (inside a NUMA node, never the bottleneck). ``assumed``: the
    source did not know the link; defaults: gen3 x16, sm 70 NVLink, 10 GB/s between CPUs.
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

    def bottleneck(self, a: str, b: str) -> Hop:
        """The slowest hop of the route, the first of equals. Raises ProbeError if a is b."""
        hops = self.route(a, b)
        if not hops:
            raise ProbeError("topology", f"{a} has no route to itself")
        return min(hops, key=lambda hop: hop.bandwidth)

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
            sms = [sm for end in ends if (sm := end.whole("sm")) is not None]
            versions = [v for end in ends if (v := end.whole("nvlink_version")) is not None]
            version = link.version if link.version is not None else min(versions, default=None)
            amd = [str(gcn) for gcn in (end.get("gcn") for end in ends) if gcn]
            known = bool(sms) or version is not None
            if amd:
                rate = rates.xgmi(amd[0])
            elif known or rate is None:
                rate = rates.nvlink(min(sms, default=None), version)
            else:
                rate *= rates.NVLINK_PLANNED
            assumed = not (amd or known) and link.rate is None
        elif rate is None:
            rate, assumed = rates.C2C_RATE if link.kind is LinkKind.C2C else rates.ASSUMED_CPU, True
        return Hop(link.a, link.b, link.kind.value, rate * link.count, link.count, assumed)


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
