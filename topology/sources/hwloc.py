"""hwloc's XML (``lstopo --of xml``): packages, NUMA nodes, caches, cores and the PCI tree."""

from __future__ import annotations

import re

from topology.busid import canonical
from topology.errors import ProbeError
from topology.facts import Value
from topology.model import Kind, Topology
from topology.sources.command import run
from topology.sources.cpulist import from_mask
from topology.sources.draft import Draft
from topology.sources.pcitree import Function, place
from topology.sources.xml_text import Node, tree

NAME = "hwloc"
_PCI_TYPE = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", re.I)
#: How ``osdev_type`` says RDMA device and network interface: a number, since hwloc 3 a bit of a set.
_KINDS, _NEW_KINDS = (3, 2), (1 << 5, 1 << 4)
_CACHE = re.compile(r"L[1-5](?:Cache)?|Cache")
_INNER = (
    "Machine",
    "System",
    "Package",
    "Socket",
    "Die",
    "Group",
    "NUMANode",
    "Core",
    "Misc",
    "MemCache",
)


def read() -> Topology:
    """Ask lstopo. Raises ProbeError when hwloc is absent or fails."""
    return parse(run(NAME, ["lstopo-no-graphics", "--of", "xml"]))


def parse(text: str) -> Topology:
    """Read the XML of hwloc 1 or 2. Raises ProbeError, with the line, for another XML."""
    root = tree(NAME, text)
    if root.tag != "topology":
        raise ProbeError(NAME, f"the root is <{root.tag}>, not <topology>", root.line)
    machine = next((n for n in root.all("object") if n.get("type") in ("Machine", "System")), None)
    if machine is None:
        raise ProbeError(NAME, "no Machine object", root.line)
    return _Reader(_NEW_KINDS if root.get("version").startswith("3") else _KINDS).read(machine)


class _Reader:
    def __init__(self, kinds: tuple[int, int]) -> None:
        self.draft = Draft(NAME)
        self.kinds = kinds
        self.functions: dict[str, Function] = {}
        self.homes: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.roots = 0

    def read(self, machine: Node) -> Topology:
        info = _infos(machine)
        self.draft.add("HOST", Kind.HOST, name=info.get("HostName", ""))
        arch = info.get("Architecture")
        self.draft.machine(arch=arch, kernel=info.get("OSRelease"))
        self._objects(machine, "HOST", "HOST")
        numas = [d.id for d in self.draft.devices.values() if d.kind is Kind.NUMA]
        if len(numas) == 1:
            self.homes = dict.fromkeys(self.homes, numas[0])
        place(self.draft, self.functions, self.homes)
        return self.draft.build()

    def _objects(self, node: Node, parent: str, home: str) -> None:
        """Walk the CPU side. Memory children come beside the caches that share it, so look first."""
        children = node.all("object")
        memory = next((c for c in children if c.get("type") == "NUMANode"), None)
        if memory is not None:
            parent = home = self._add(Kind.NUMA, "NUMA", parent, memory)
            self._objects(memory, parent, home)
            for other in (c for c in children if c.get("type") == "NUMANode" and c is not memory):
                self._add(Kind.NUMA, "NUMA", parent, other)
        for child in children:
            kind = child.get("type")
            if kind in ("Package", "Socket"):
                id = self._add(Kind.PACKAGE, "PKG", parent, child)
                self._objects(child, id, home if home != "HOST" else id)
            elif kind == "Core":
                self._add(Kind.CORE, "CORE", parent, child)
            elif _CACHE.fullmatch(kind) and child.get("cache_type", "0") in ("0", "1"):
                self._objects(child, self._cache(child, parent), home)
            elif kind == "Bridge" and child.get("bridge_type", "0-1").startswith("0"):
                root = self._root(child)
                self.homes[root] = home
                self._pci(child, root, ())
            elif kind == "PCIDev":
                root = self._root(child)
                self.homes[root] = home
                self._function(child, root, ())
            elif kind in _INNER and kind != "NUMANode":
                self._objects(child, parent, home)

    def _add(self, kind: Kind, stem: str, parent: str, node: Node) -> str:
        said = node.number("os_index", NAME) if kind is not Kind.CORE else None
        count = self.counts.get(stem, 0)
        self.counts[stem] = count + 1
        index = count if said is None or said < 0 or f"{stem}{said}" in self.draft.devices else said
        while f"{stem}{index}" in self.draft.devices:
            index += 1
        info = _infos(node)
        facts: dict[str, Value | None] = {"cpus": from_mask(node.get("cpuset")) or None}
        if kind is Kind.NUMA:
            facts["memory"] = node.number("local_memory", NAME)
        if kind is Kind.PACKAGE:
            facts["model"] = info.get("CPUModel")
            facts["vendor"] = info.get("CPUVendor")
            facts["family"] = _integer(info.get("CPUFamilyNumber"))
            facts["cpu_model"] = _integer(info.get("CPUModelNumber"))
            if "vendor" not in {f.name for f in self.draft.facts} and facts["vendor"]:
                self.draft.machine(**{n: facts[n] for n in ("vendor", "family", "cpu_model")})
        id = self.draft.add(f"{stem}{index}", kind, index, parent=parent)
        self.draft.state(id, **facts)
        return id

    def _cache(self, node: Node, parent: str) -> str:
        level = node.number("depth", NAME) or 0
        stem = f"L{level}:"
        index = self.counts.get(stem, 0)
        self.counts[stem] = index + 1
        id = self.draft.add(f"{stem}{index}", Kind.CACHE, index, name=f"L{level}", parent=parent)
        self.draft.state(
            id, size=node.number("cache_size", NAME), cpus=from_mask(node.get("cpuset")) or None
        )
        return id

    def _root(self, bridge: Node) -> str:
        """``0000:00`` of ``bridge_pci="0000:[00-07]"``; a number of our own where it is missing."""
        match = re.match(r"([0-9a-f]{4,8}):\[([0-9a-f]{2})-", bridge.get("bridge_pci"), re.I)
        self.roots += 1
        return (
            f"{int(match[1], 16):04x}:{match[2].lower()}" if match else f"host bridge {self.roots}"
        )

    def _pci(self, node: Node, root: str, bridges: tuple[str, ...]) -> None:
        for child in node.all("object"):
            if child.get("type") == "Bridge":
                busid = self._function(child, root, bridges)
                self._pci(child, root, (*bridges, busid))
            elif child.get("type") == "PCIDev":
                self._function(child, root, bridges)

    def _function(self, node: Node, root: str, bridges: tuple[str, ...]) -> str:
        busid = canonical(node.get("pci_busid"))
        if busid is None:
            said = node.get("pci_busid")
            raise ProbeError(NAME, f"pci_busid={said!r} appears without being one", node.line)
        if busid in self.functions:
            self.draft.gap(
                busid, "pci_busid", f"line {node.line}: it appears twice; this one is out"
            )
            return busid
        match = _PCI_TYPE.match(node.get("pci_type"))
        function = Function(busid, root, bridges)
        if match:
            function.pci_class, function.vendor = f"0x{match[1].lower()}00", f"0x{match[2].lower()}"
            function.facts["pci_device"] = f"0x{match[3].lower()}"
        self._os_devices(node, function)
        self.functions[busid] = function
        return busid

    def _is(self, said: int | None, kind: int) -> bool:
        return said is not None and (
            said == kind or (self.kinds is _NEW_KINDS and bool(said & kind))
        )

    def _os_devices(self, node: Node, function: Function) -> None:
        """Names: RDMA devices first, as NCCL and topo -m know NICs by them."""
        devices = [c for c in node.all("object") if c.get("type") == "OSDev"]
        rdma, net = (
            [d for d in devices if self._is(d.number("osdev_type", NAME), kind)]
            for kind in self.kinds
        )
        function.names = tuple(d.get("name") for d in (*rdma, *net) if d.get("name"))
        model = next((m for d in devices if (m := _infos(d).get("GPUModel"))), None)
        facts = function.facts
        facts["model"] = model
        facts["pci_name"] = _infos(node).get("PCIDevice")
        facts["net_names"] = function.names or None
        facts["guid"] = next((g for d in rdma if (g := _infos(d).get("NodeGUID"))), None)
        speed = node.get("pci_link_speed")
        if re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,9})?", speed) and float(speed) > 0:
            facts["pcie_rate"] = float(speed) * 1e9


def _infos(node: Node) -> dict[str, str]:
    return {info.get("name"): info.get("value") for info in node.all("info") if info.get("value")}


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 10 else None
