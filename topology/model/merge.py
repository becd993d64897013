"""Merges several sources' statements about one machine, keeping their provenance.

Devices are matched by their canonical PCI bus id. Sources without bus ids (``topo -m``) number GPUs
as NVML does, in the order of bus ids, and know NICs by name. The arguments are in order of trust:
the first statement of a fact is used; the others are kept and compared (see
``topology.model.map``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from busbar.errors import ProbeError
from topology.model.device import Fact, order
from topology.model.topology import Device, Kind, Link, PairFact, Topology


def merge(topologies: Sequence[Topology]) -> Topology:
    """Merge topologies of one machine. Raises ProbeError if they cannot be of one machine."""
    if len(topologies) == 1:
        return topologies[0]
    merger = _Merger()
    for topology in topologies:
        merger.add(topology)
    return merger.build()


@dataclass
class _Merger:
    devices: dict[str, Device] = field(default_factory=dict)
    depth: dict[str, int] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    stated: list[PairFact] = field(default_factory=list)
    derived: list[PairFact] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    topologies: list[Topology] = field(default_factory=list)

    def add(self, topology: Topology) -> None:
        """Add one more source."""
        self.topologies.append(topology)
        names = self._names(topology)
        for device in topology.devices:
            self._device(names[device.id], device, topology, names)
        for link in topology.links:
            moved = replace(link, a=names[link.a], b=names[link.b])
            if not any(replace(moved, source=known.source) == known for known in self.links):
                self.links.append(moved)
        self.stated += [replace(pair, a=names[pair.a], b=names[pair.b]) for pair in topology.pairs]
        self.derived += self._levels(topology, names)
        self.facts += topology.facts
        self.sources += [source for source in topology.sources if source not in self.sources]

    def build(self) -> Topology:
        """The merged map. Stated relations come before derived ones; devices keep their order."""
        pairs = tuple(dict.fromkeys((*self.stated, *self.derived)))
        gaps = tuple(dict.fromkeys(gap for topology in self.topologies for gap in topology.gaps))
        return Topology(
            tuple(self.devices.values()),
            tuple(self.links),
            pairs,
            tuple(dict.fromkeys(self.facts)),
            gaps,
            tuple(self.sources),
        )

    # -- matching devices

    def _names(self, topology: Topology) -> dict[str, str]:
        names: dict[str, str] = {}
        ranks = self._gpu_ranks(topology)
        for device in topology.devices:
            known = ranks.get(device.id) or self._known(device, topology, names)
            if known is None or known in names.values():
                known = self._fresh(device, names)
            names[device.id] = known
        return names

    def _gpu_ranks(self, topology: Topology) -> dict[str, str]:
        """Match GPUs by order, if this source or the earlier ones lack bus ids."""
        mine = [d for d in self.devices.values() if d.kind is Kind.GPU]
        theirs = topology.gpus
        if not mine or not theirs:
            return {}
        my_buses, their_buses = (all(d.busid for d in side) for side in (mine, theirs))
        if my_buses and their_buses:
            return {}
        if not my_buses and not their_buses:
            return {d.id: d.id for d in theirs if d.id in self.devices}
        known = mine if my_buses else theirs
        ordered = [d.id for d in sorted(known, key=lambda d: order(d.busid or ""))]
        if my_buses:
            lost = [d.id for d in theirs if d.index is None or d.index >= len(ordered)]
            if lost:
                reason = (
                    f"{topology.sources[0]} has {lost[-1]}, but {self.sources[0]} only"
                    f" {len(ordered)} GPUs: not the same machine, or not all GPUs visible"
                )
                raise ProbeError("merge", reason)
            return {d.id: ordered[d.index or 0] for d in theirs}
        by_index = {d.index: d.id for d in mine}
        return {id: by_index[rank] for rank, id in enumerate(ordered) if rank in by_index}

    def _known(self, device: Device, topology: Topology, names: dict[str, str]) -> str | None:
        same = [d for d in self.devices.values() if d.kind is device.kind]
        if device.busid:
            known = next((d.id for d in same if d.busid == device.busid), None)
            if known is not None:
                return known
        if device.kind is Kind.NIC:
            return self._known_nic(device, same)
        if device.kind is Kind.MIG:
            parent = names.get(device.parent or "")
            return next(
                (d.id for d in same if d.parent == parent and d.index == device.index), None
            )
        if device.kind in (Kind.CORE, Kind.CACHE):
            cpus = (device.name, device.get("cpus"))
            return next((d.id for d in same if (d.name, d.get("cpus")) == cpus), None)
        if device.busid or device.kind is Kind.GPU:
            return None
        return device.id if device.id in self.devices else None

    @staticmethod
    def _known_nic(device: Device, same: list[Device]) -> str | None:
        """Match a NIC by any of its names; sources that name or place NICs number them apart."""
        names = {*device.net_names}
        if not names and not device.busid:
            return next(
                (d.id for d in same if d.id == device.id and not d.net_names and not d.busid),
                None,
            )
        return next(
            (d.id for d in same if names & {*d.net_names} and not (d.busid and device.busid)), None
        )

    def _fresh(self, device: Device, names: dict[str, str]) -> str:
        taken = {*self.devices, *names.values()}
        if device.id not in taken:
            return device.id
        stem = device.id.rstrip("0123456789")
        return next(id for n in range(len(taken) + 1) if (id := f"{stem}{n}") not in taken)

    # -- merging facts

    def _device(self, id: str, device: Device, topology: Topology, names: dict[str, str]) -> None:
        parent = names[device.parent] if device.parent is not None else None
        depth = sum(1 for _ in topology.ancestors(device.id))
        old = self.devices.get(id)
        if old is None:
            digits = id[len(id.rstrip("0123456789")) :]
            index = int(digits) if device.index is not None and digits else device.index
            self.devices[id] = replace(device, id=id, parent=parent, index=index)
            self.depth[id] = depth
            return
        facts = list(dict.fromkeys((*old.facts, *device.facts)))
        for name in ("busid", "uuid"):
            before, now = getattr(old, name), getattr(device, name)
            if before and now and before != now:
                facts += [Fact(name, before, self.sources[0]), Fact(name, now, topology.sources[0])]
        # The deeper tree has more information: sysfs knows root complexes, NCCL does not.
        deeper = parent is not None and (old.parent is None or depth > self.depth[id])
        if deeper:
            self.depth[id] = depth
        self.devices[id] = replace(
            old,
            name=old.name or device.name,
            busid=old.busid or device.busid,
            uuid=old.uuid or device.uuid,
            parent=parent if deeper else old.parent,
            facts=tuple(dict.fromkeys(facts)),
        )

    @staticmethod
    def _levels(topology: Topology, names: dict[str, str]) -> list[PairFact]:
        """The nearest common ancestors of pairs by a source's tree, as its statements, to compare.

        ``names``: the ids of the source's devices in the merged map.
        """
        source = topology.sources[0] if len(topology.sources) == 1 else "merged"
        levels = []
        for a, b in combinations([device.id for device in topology.endpoints], 2):
            level = topology.tree_level(a, b)
            if level is not None and not topology.pair_statements(a, b, "level"):
                levels.append(PairFact(names[a], names[b], Fact("level", level.name, source)))
        return levels
