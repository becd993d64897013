"""A machine as its sources state it: devices in a tree, links across, pairs, gaps.

Relations between devices are computed here; routes and contradictions are in
`topology.model.topology`.

The tree has one normal form for every source: host > package > NUMA node > root complex > PCIe
switch* > GPU or NIC. A level that a source does not know is absent, and a PCIe switch is *one* node
(its upstream and downstream ports are not nodes of their own; the port above a device is among the
device's facts).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from busbar.counters import MUCH, taken
from busbar.errors import ProbeError
from topology.model.device import (
    COUNT,
    SYMMETRIC,
    VOLATILE,
    Contradiction,
    Device,
    Fact,
    Gap,
    Kind,
    Level,
    Link,
    LinkKind,
    PairFact,
    Relation,
    Value,
    slot,
    values_by_source,
)

DERIVED = "derived"


@dataclass(frozen=True)
class Map:
    """A machine, as its sources know it. Raises ProbeError for unknown or circular references."""

    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    pairs: tuple[PairFact, ...] = ()
    facts: tuple[Fact, ...] = ()
    gaps: tuple[Gap, ...] = ()
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self._by_id) != len(self.devices):
            ids = [device.id for device in self.devices]
            twice = next(id for id in ids if ids.count(id) > 1)
            raise ProbeError("topology", f"two devices are called {twice}")
        for device in self.devices:
            if device.parent is not None and device.parent not in self._by_id:
                raise ProbeError(
                    "topology", f"{device.id} hangs on {device.parent}, which is absent"
                )
        ends = [(link.a, link.b) for link in self.links] + [(pair.a, pair.b) for pair in self.pairs]
        for end in {end for pair in ends for end in pair}:
            if end not in self._by_id:
                raise ProbeError("topology", f"a link or pair names {end}, which is absent")
        for device in self.devices:
            if sum(1 for _ in self.ancestors(device.id)) > len(self.devices):
                raise ProbeError("topology", f"{device.id} is its own ancestor")

    # -- devices

    @cached_property
    def _by_id(self) -> dict[str, Device]:
        return {device.id: device for device in self.devices}

    def device(self, id: str) -> Device:
        """The device with this id. Raises ProbeError, with the known ids, if there is none."""
        if id not in self._by_id:
            known = ", ".join(d.id for d in (*self.gpus, *self.nics)) or "none"
            raise ProbeError("topology", f"no device {id!r}; GPUs and NICs here: {known}")
        return self._by_id[id]

    def of(self, kind: Kind) -> tuple[Device, ...]:
        """All devices of a kind, by index and then by their order in the topology."""
        devices = (device for device in self.devices if device.kind is kind)
        return tuple(sorted(devices, key=lambda d: -1 if d.index is None else d.index))

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs by index."""
        return self.of(Kind.GPU)

    @property
    def nics(self) -> tuple[Device, ...]:
        """The NICs by index."""
        return self.of(Kind.NIC)

    @property
    def endpoints(self) -> tuple[Device, ...]:
        """The devices of the matrix: GPUs, NICs, and NICs' data-direct functions (DD0 …)."""
        return (*self.gpus, *self.nics, *self.of(Kind.DIRECT))

    def get(self, name: str) -> Value | None:
        """The value of the most trusted fact about the machine as a whole, or None."""
        return next((fact.value for fact in self.facts if fact.name == name), None)

    @property
    def others_share(self) -> float:
        """The share of all cores, 0 to 1, that other programs took while ranks were measured.

        Of several hosts the greatest; 0.0 if it is not known.
        """
        share = self.get("others_share")
        return float(min(1, max(0, share))) if isinstance(share, int | float) else 0.0

    @property
    def disturbance(self) -> str:
        """A sentence on other programs that ran while ranks were measured; empty if few did."""
        text = taken(self.others_share)
        if self.others_share >= MUCH:
            remedy = "do not rely on its figures, measure again while nothing else runs"
            return f"{text} while this was measured: {remedy}"
        return text and f"{text} while this was measured"

    @property
    def racks(self) -> list[list[str]]:
        """The names of each rack's hosts, as ``measure --racks`` found them; empty if it did not.

        Hosts of one rack share an uplink.
        """
        text = str(self.get("racks") or "")
        return [rack.split() for rack in text.split(";")] if ";" in text else []

    # -- tree

    def children(self, id: str) -> tuple[Device, ...]:
        """The devices whose parent is this one."""
        return tuple(device for device in self.devices if device.parent == id)

    def ancestors(self, id: str) -> Iterator[Device]:
        """The device's parent, its parent, …; at most one step per device even in a broken tree."""
        parent = self._by_id[id].parent
        for _ in range(len(self.devices) + 1):
            if parent is None:
                return
            yield self._by_id[parent]
            parent = self._by_id[parent].parent

    def ancestor(self, id: str, kind: Kind) -> Device | None:
        """The nearest ancestor of a kind, or None."""
        return next((device for device in self.ancestors(id) if device.kind is kind), None)

    def of_one_host(self, source: str) -> None:
        """Raise ProbeError if there are GPUs of several hosts, whose indices count across hosts.

        ``source``: the name in the error of what needs the indices of one host.
        """
        homes = {host for gpu in self.gpus if (host := self.ancestor(gpu.id, Kind.HOST))}
        if len(homes) > 1:
            reason = f"this map has GPUs of {len(homes)} hosts; read one host's map"
            raise ProbeError(source, reason)

    # -- pairs

    @cached_property
    def _pair_index(self) -> dict[tuple[str, str], tuple[Fact, ...]]:
        index: dict[tuple[str, str], tuple[Fact, ...]] = {}
        for pair in self.pairs:
            ways = [(pair.a, pair.b)]
            if pair.fact.name in SYMMETRIC and pair.a != pair.b:
                ways.append((pair.b, pair.a))
            for way in ways:
                index[way] = (*index.get(way, ()), pair.fact)
        return index

    def pair_statements(self, a: str, b: str, name: str) -> dict[str, Value]:
        """The values of all facts about a pair with this name by source, in order of trust."""
        return values_by_source(self._pair_index.get((a, b), ()), name)

    def pair(self, a: str, b: str, name: str) -> Value | None:
        """The most trusted value about a pair (directed from a to b), or None."""
        return next(iter(self.pair_statements(a, b, name).values()), None)

    def peers(self, a: str, b: str) -> bool:
        """False if a source states for either direction that P2P access does not work."""
        ways = ((a, b), (b, a))
        reads = {self.pair(x, y, "p2p_read") for x, y in ways}
        return reads <= {None, "OK", "U"} and not any(
            self.pair(x, y, "p2p_access") is False for x, y in ways
        )

    def stated(self, devices: Iterable[Device], *names: str) -> list[tuple[str, str]]:
        """The pairs among these devices for which a source states any of these facts, in order."""
        place = {device.id: n for n, device in enumerate(devices)}
        ids = list(place)
        levels = {
            (min(place[p.a], place[p.b]), max(place[p.a], place[p.b]))
            for p in self.pairs
            if p.fact.name in names and p.a in place and p.b in place and p.a != p.b
        }
        return [(ids[a], ids[b]) for a, b in sorted(levels)]

    def tree_level(self, a: str, b: str) -> Level | None:
        """The nearest common PCIe ancestor in the tree, or None if the tree does not tell.

        Below one root complex the tree decides. Two devices of one NUMA node are NODE if their root
        complexes are known and differ, and PHB otherwise (like NCCL, which does not know root
        complexes).
        """
        if a == b:
            return Level.LOC
        first, second = self._by_id[a], self._by_id[b]
        hosts = [self.ancestor(end, Kind.HOST) for end in (a, b)]
        if None not in hosts and hosts[0] != hosts[1]:
            return None  # bus ids of two machines may be the same
        cards = [str(d.busid or d.get("card") or d.id) for d in (first, second)]
        if slot(cards[0]) == slot(cards[1]) != "":
            return Level.PIX
        above = [device.id for device in self.ancestors(b)]
        common = next((d for d in self.ancestors(a) if d.id in above), None)
        if common is None:
            return None
        if common.kind is Kind.BRIDGE:
            near = first.parent == common.id and second.parent == common.id
            return Level.PIX if near else Level.PXB
        if common.kind is Kind.ROOT:
            return Level.PHB
        if common.kind is Kind.NUMA:
            roots = all(self.ancestor(end, Kind.ROOT) for end in (a, b))
            return Level.NODE if roots else Level.PHB
        # Devices with an unknown NUMA node may still be known to be on different packages.
        kinds = (Kind.NUMA, Kind.PACKAGE) if common.kind is Kind.HOST else (Kind.NUMA,)
        apart = all(any(self.ancestor(end, kind) for kind in kinds) for end in (a, b))
        return Level.SYS if apart else None

    @cached_property
    def _nvlinks(self) -> dict[str, dict[str, int]]:
        counts: dict[str, dict[str, int]] = {}
        for link in self.links:
            if link.kind is LinkKind.NVLINK and link.a != link.b:
                for a, b in ((link.a, link.b), (link.b, link.a)):
                    peers = counts.setdefault(a, {})
                    peers[b] = max(peers.get(b, 0), link.count)
        return counts

    def wired_nvlinks(self, a: str, b: str) -> int | None:
        """NVLinks between two devices, counted from the links; None if either has no links.

        Through switches it is the smaller of the two devices' link counts to those switches, which
        is what nvidia-smi prints (18 on an H100 baseboard).
        """
        mine, theirs = self._nvlinks.get(a, {}), self._nvlinks.get(b, {})
        if not mine or not theirs:
            return None
        if b in mine:
            return mine[b]
        shared = [s for s in mine if s in theirs and self._by_id[s].kind is Kind.SWITCH]
        return min(sum(mine[s] for s in shared), sum(theirs[s] for s in shared))

    def nvlinks(self, a: str, b: str) -> int:
        """NVLinks between two devices: the stated number, else from the links, else 0."""
        stated = self.pair(a, b, "nvlinks")
        return stated if isinstance(stated, int) else self.wired_nvlinks(a, b) or 0

    def relation(self, a: str, b: str) -> Relation:
        """The relation of two devices: as stated, else from the tree."""
        self.device(a), self.device(b)
        if a == b:
            return Relation(Level.LOC, 0, (DERIVED,))
        stated = self.pair_statements(a, b, "level")
        sources = tuple(dict.fromkeys((*stated, *self.pair_statements(a, b, "nvlinks"))))
        level = Level[str(next(iter(stated.values())))] if stated else self.tree_level(a, b)
        return Relation(level, self.nvlinks(a, b), sources or (DERIVED,))

    def matrix(self, ids: Iterable[str] | None = None) -> tuple[tuple[str, ...], ...]:
        """The matrix as nvidia-smi prints it (X, NV4, PIX … or ?), of GPUs and NICs or ``ids``."""
        rows = tuple(ids) if ids is not None else tuple(d.id for d in self.endpoints)
        return tuple(tuple(self.relation(a, b).text for b in rows) for a in rows)

    @property
    def lost(self) -> tuple[Gap, ...]:
        """The gaps for devices that are in a source's text but not in the map."""
        return tuple(gap for gap in self.gaps if gap.call == COUNT)


#: The source named for a number of NVLinks that was counted from single links.
LINKS = "the links"
#: Sources round sizes and clocks to different units.
_ROUNDING = 0.005
#: NCCL's map has no root complexes, so it says PHB if NVML says NODE; both are right.
_SAME_NODE = frozenset({Level.PHB, Level.NODE})


def contradictions(topology: Map) -> tuple[Contradiction, ...]:
    """Facts that sources state differently, and pairs whose stated ancestor is not the tree's."""
    conflicts = [
        Contradiction(device.id, name, values)
        for device in topology.devices
        for name, values in _differing(device.facts)
    ]
    conflicts += [
        Contradiction("machine", name, values) for name, values in _differing(topology.facts)
    ]
    conflicts += _pair_conflicts(topology)
    return tuple(conflicts)


def _differing(facts: tuple[Fact, ...]) -> list[tuple[str, dict[str, Value]]]:
    by_name: dict[str, dict[str, Value]] = {}
    for fact in facts:
        if fact.name not in VOLATILE:
            by_name.setdefault(fact.name, {})[fact.source] = fact.value
    return [(name, values) for name, values in by_name.items() if not _agree(list(values.values()))]


def _agree(values: list[Value]) -> bool:
    """True if values are equal except for rounding (MiB, MHz) and the vendor's name."""
    first = values[0]
    if all(isinstance(value, int | float) for value in values):
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        return max(numbers) - min(numbers) <= _ROUNDING * abs(max(numbers, key=abs))
    if all(isinstance(value, str) for value in values):
        return len({str(value).lower().removeprefix("nvidia ") for value in values}) == 1
    return all(value == first for value in values)


def _pair_conflicts(topology: Map) -> list[Contradiction]:
    conflicts: list[Contradiction] = []
    for a, b in topology.stated(topology.endpoints, *SYMMETRIC):
        levels = topology.pair_statements(a, b, "level")
        tree = topology.tree_level(a, b)
        if levels and tree is not None:
            levels[DERIVED] = tree.name
        known = {Level[str(value)] for value in levels.values()}
        if len(known) > 1 and not known <= _SAME_NODE:
            conflicts.append(Contradiction(f"{a} and {b}", "level", levels))
        counts = topology.pair_statements(a, b, "nvlinks")
        wired = topology.wired_nvlinks(a, b)
        if counts and wired is not None:
            counts[LINKS] = wired
        if len(set(counts.values())) > 1:
            conflicts.append(Contradiction(f"{a} and {b}", "nvlinks", counts))
    return conflicts
