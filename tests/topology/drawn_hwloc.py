"""A drawn machine as hwloc 1, 2 and 3 write it."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from hypothesis import strategies as st

from .drawn import CLASSES, GPU, NIC, Card, Machine, Numa, Switch, mask

#: MB/s of one NVLink in hwloc's matrices, by version.
_RATES = {1: 20_000, 2: 25_000}


def hwloc(machine: Machine, version: int, draw: Callable[[st.SearchStrategy[bool]], bool]) -> str:
    """The XML of lstopo of version 1, 2 or 3.

    ``draw`` decides what versions and options leave open.
    """
    writer = _Hwloc(version, lambda: draw(st.booleans()))
    return writer.document(machine)


class _Hwloc:
    def __init__(self, version: int, either: Callable[[], bool]) -> None:
        self.version, self.either = version, either
        self.osdevs: dict[str, str] = {}
        self.gp = 0
        self.package = "Package" if version > 1 or either() else "Socket"
        self.instruction_caches, self.groups, self.beside = either(), either(), either()

    def object(self, parent: Element, kind: str, **attributes: object) -> Element:
        self.gp += 1
        said = {name: str(value) for name, value in attributes.items() if value is not None}
        return SubElement(parent, "object", type=kind, gp_index=str(self.gp), **said)

    def document(self, machine: Machine) -> str:
        root = Element("topology", {} if self.version == 1 else {"version": f"{self.version}.0"})
        cpus = [cpu for numa in machine.numas for core in numa.cores for cpu in core]
        top = self.object(root, "Machine", os_index=0, cpuset=mask(cpus))
        within = self.object(top, "Group", cpuset=mask(cpus)) if self.groups else top
        for index, numas in enumerate(machine.packages):
            self.packaged(within, index, numas)
        for n in range(machine.far):
            # hwloc 1 gives such memory no CPUs, hwloc 2 all of those that are as far from it.
            near = mask([]) if self.version == 1 else mask(cpus)
            self.memory(top, 200 + n, near)
        if machine.nvlinks and self.version > 1:
            self.matrix(root, machine)
        return ElementTree.tostring(root, encoding="unicode")

    def packaged(self, parent: Element, index: int, numas: list[Numa]) -> None:
        cpus = [cpu for numa in numas for core in numa.cores for cpu in core]
        if self.version == 1 and len(numas) == 1 and self.either():
            # Memory above the package, as hwloc 1 has it where both hold the same CPUs.
            memory = self.memory(parent, numas[0].index, mask(cpus))
            package = self.object(memory, self.package, os_index=index, cpuset=mask(cpus))
            self.inside(package, numas[0])
            self.devices(memory, numas[0])
            return
        package = self.object(parent, self.package, os_index=index, cpuset=mask(cpus))
        for numa in numas:
            mine = mask([cpu for core in numa.cores for cpu in core])
            if self.version == 1:
                memory = self.memory(package, numa.index, mine)
                self.inside(memory, numa)
                self.devices(memory, numa)
                continue
            here = package
            if len(numas) > 1:
                here = self.object(package, "Group", cpuset=mine)
            holder = here
            if self.either():
                holder = self.object(here, "MemCache", depth=1, cpuset=mine, cache_type=0)
            memory = self.memory(holder, numa.index, mine)
            self.inside(here, numa)
            self.devices(memory if self.beside else here, numa)

    def memory(self, parent: Element, index: int, cpus: str) -> Element:
        return self.object(parent, "NUMANode", os_index=index, cpuset=cpus, local_memory=1 << 30)

    def inside(self, parent: Element, numa: Numa) -> None:
        for number, core in enumerate(numa.cores):
            mine, here = mask(core), parent
            name = "Cache" if self.version == 1 else "L1Cache"
            here = self.object(here, name, depth=1, cpuset=mine, cache_type=1)
            if self.instruction_caches:
                name = "Cache" if self.version == 1 else "L1iCache"
                here = self.object(here, name, depth=1, cpuset=mine, cache_type=2)
            here = self.object(here, "Core", os_index=number, cpuset=mine)
            for cpu in core:
                self.object(here, "PU", os_index=cpu, cpuset=mask([cpu]))

    def devices(self, parent: Element, numa: Numa) -> None:
        for root in numa.roots:
            bus = root.name.split(":")[1]
            host = self.object(
                parent, "Bridge", bridge_type="0-1", depth=0,
                bridge_pci=f"{root.name.split(':')[0]}:[{bus}-ff]"
            )  # fmt: skip
            for port, item in zip(root.ports, root.below, strict=True):
                self.item(host if port is None else self.port(host, port), item)

    def port(self, parent: Element, busid: str) -> Element:
        kind = "0604 [10b5:8747] [0000:0000] 00"
        return self.object(parent, "Bridge", bridge_type="1-1", pci_busid=busid, pci_type=kind)

    def item(self, parent: Element, item: Card | Switch) -> None:
        if isinstance(item, Switch):
            upstream = self.port(parent, item.busid)
            for port, below in zip(item.ports, item.below, strict=True):
                self.item(self.port(upstream, port), below)
            return
        kind, ids = CLASSES[item.kind]
        for n, busid in enumerate(item.functions):
            device = self.object(
                parent, "PCIDev", pci_busid=busid, pci_type=f"{kind} [{ids}] [0000:0000] 00"
            )
            new = self.version == 3
            if item.kind == NIC:
                self.object(device, "OSDev", name=f"ib{busid}", osdev_type=16 if new else 2)
                self.object(device, "OSDev", name=item.names[n], osdev_type=48 if new else 3)
            elif item.kind == GPU:
                self.object(device, "OSDev", name="nvml", osdev_type=12 if new else 1)
                self.osdevs[busid] = f"OSDev:{self.gp}"
            else:
                self.object(device, "OSDev", name="card0", osdev_type=4 if new else 1)

    def matrix(self, root: Element, machine: Machine) -> None:
        ends = [busid for busid in self.osdevs if any(busid in pair for pair in machine.nvlinks)]
        counts = {**machine.nvlinks, **{(b, a): n for (a, b), n in machine.nvlinks.items()}}
        rate = _RATES[machine.version]
        values = [1_000_000 if a == b else counts.get((a, b), 0) * rate for a in ends for b in ends]
        indexes = [self.osdevs[busid] for busid in ends]
        tag, said = "distances2hetero", {"kind": "25"}
        if self.either():
            tag, said = "distances2", {"kind": "9", "type": "OSDev", "indexing": "gp"}
            indexes = [index.removeprefix("OSDev:") for index in indexes]
        node = SubElement(root, tag, nbobjs=str(len(ends)), name="NVLinkBandwidth", **said)
        for name, words in (("indexes", indexes), ("u64values", list(map(str, values)))):
            for at in range(0, len(words), 10):
                SubElement(node, name).text = " ".join(words[at : at + 10]) + " "
