"""hwloc's XML (``lstopo --of xml``): packages, NUMA nodes, caches, cores and the PCI tree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from busbar.cpulist import from_mask
from busbar.errors import ProbeError
from topology.model.busid import canonical
from topology.model.facts import Gap, Value
from topology.model.topology import Kind, Topology
from topology.sources.draft import Draft
from topology.sources.hwloc_links import add_links
from topology.sources.hwloc_pci import Pci, infos
from topology.sources.pcitree import place
from topology.sources.text import bounded
from topology.sources.xml_text import Node, tree

NAME = "hwloc"
MAX_HOSTS = 1024
#: How a document begins.
_DOCUMENT = re.compile(r"^[ \t]*<\?xml\s", re.M)
_CACHE = re.compile(r"L[1-5](?:Cache)?|Cache")
_SHARED, _DATA = "0", "1"
_MEMORY = ("NUMANode", "MemCache")
#: Objects that hold CPUs; packages, cores and caches of data become devices, the others do not.
_CPUS = re.compile(r"Package|Socket|Die|Core|PU|L[1-5]i?(?:Cache)?|Cache")
_OTHERS = {"Machine", "System", "Group", "Misc", *_MEMORY, "Bridge", "PCIDev", "OSDev"}


def parse(text: str) -> Topology:
    """Read the XML of hwloc 1, 2 or 3, of one machine or several, which become hosts of one map.

    Several machines are below one System object, as hwloc-assembler writes them, or documents one
    behind the other. Raises ProbeError, with the line, for another XML.
    """
    starts = [found.start() for found in _DOCUMENT.finditer(bounded(NAME, text))]
    parts = [text]
    if len(starts) > 1:
        ends = [*starts[1:], len(text)]
        parts = [text[start:end] for start, end in zip([0, *starts[1:]], ends, strict=True)]
    if len(parts) > MAX_HOSTS:
        raise ProbeError(NAME, f"{len(parts)} documents; at most {MAX_HOSTS} are read")
    found, skipped = list[Topology](), 0
    for part in parts:
        found += _document(part, skipped)
        skipped += part.count("\n")
    return found[0] if len(found) == 1 else _together(found)


def _document(text: str, above: int) -> list[Topology]:
    """The map of each machine of a document, which ``above`` lines stand before."""
    root = tree(NAME, text, above)
    if root.tag != "topology":
        raise ProbeError(NAME, f"the root is <{root.tag}>, not <topology>", root.line)
    top = next((n for n in root.all("object") if n.get("type") in ("Machine", "System")), None)
    if top is None:
        raise ProbeError(NAME, "no Machine object", root.line)
    machines = [node for node in top.all("object") if node.get("type") == "Machine"]
    before_3 = not root.get("version").startswith("3")
    if not machines or top.get("type") == "Machine":
        return [_Reader(before_3, top).read(root, top)]
    if len(machines) > MAX_HOSTS:
        raise ProbeError(NAME, f"{len(machines)} machines; at most {MAX_HOSTS} are read", top.line)
    bare = replace(root, children=[])
    found = [_Reader(before_3, machine).read(bare, machine) for machine in machines]
    if lost := [node for node in root.children if node.tag.startswith("distances")]:
        # Their rows are numbers of objects, which machines have in common.
        why = f"line {lost[0].line}: {len(lost)} matrices over several machines are not read"
        found[0] = replace(found[0], gaps=(*found[0].gaps, Gap(NAME, "links", "distances", why)))
    return found


def _together(maps: list[Topology]) -> Topology:
    """One map of several hosts: GPUs and NICs are numbered from host to host."""
    draft = Draft(NAME)
    counts = dict.fromkeys((Kind.GPU, Kind.NIC), 0)
    for n, one in enumerate(maps):
        names: dict[str, str] = {}
        indices: dict[str, int | None] = {}
        for device in one.devices:
            indices[device.id] = device.index
            if device.kind in counts:
                indices[device.id] = index = counts[device.kind]
                counts[device.kind] += 1
                names[device.id] = f"{'GPU' if device.kind is Kind.GPU else 'NIC'}{index}"
            elif device.kind is Kind.HOST:
                names[device.id] = f"HOST{n}" if n else "HOST"
            else:
                names[device.id] = f"{device.id}@HOST{n}" if n else device.id
        for device in one.devices:
            id, parent = names[device.id], names.get(device.parent or "")
            draft.devices[id] = replace(device, id=id, index=indices[device.id], parent=parent)
        draft.links += [replace(link, a=names[link.a], b=names[link.b]) for link in one.links]
        draft.pairs += [replace(pair, a=names[pair.a], b=names[pair.b]) for pair in one.pairs]
        draft.gaps += one.gaps
        draft.facts += [fact for fact in one.facts if fact not in draft.facts]
    return draft.build()


class _Reader:
    def __init__(self, before_3: bool, machine: Node) -> None:
        self.draft = Draft(NAME)
        self.pci = Pci(self.draft, before_3)
        self.counts: dict[str, int] = {}
        self.ids: dict[int, str] = {}
        self.with_memory, self.with_cpus = _contents(machine)

    def read(self, root: Node, machine: Node) -> Topology:
        info = infos(root) | infos(machine)
        self.draft.add("HOST", Kind.HOST, name=info.get("HostName", ""))
        self.draft.machine(arch=info.get("Architecture"), kernel=info.get("OSRelease"))
        self._objects(machine, "HOST", "HOST")
        numas = [d.id for d in self.draft.devices.values() if d.kind is Kind.NUMA]
        homes = self.pci.homes
        if len(numas) == 1:
            homes = dict.fromkeys(homes, numas[0])
        placed = place(self.draft, self.pci.functions, homes)
        nodes = [node for node in machine.walk() if node.tag == "object"]
        add_links(self.draft, root, self._ends(nodes, placed))
        self._account(nodes)
        self.pci.account(nodes)
        return self.draft.build()

    def _objects(self, node: Node, parent: str, home: str) -> None:
        """Visit every object; its type says whether it becomes a device.

        hwloc 1 has memory above the CPUs that it serves, hwloc 2 beside them. Memory beside CPUs is
        above them in the map where it is theirs; memory of a GPU, of CXL or of a larger part of the
        machine, whose CPUs have some of their own, is a leaf.
        """
        children = node.all("object")
        memory = [found for child in children for found in _memory(child)]
        for found in memory:
            if id(found) not in self.ids:
                self.ids[id(found)] = self._add(Kind.NUMA, "NUMA", parent, found)
        local = self._local(children, memory)
        if local is not None:
            home = self.ids[id(local)]
            parent = parent if id(local) in self.with_cpus else home
        for child in children:
            self._object(child, parent, home)

    def _local(self, children: list[Node], memory: list[Node]) -> Node | None:
        """The memory that belongs to the objects beside it, if there is exactly one."""
        beside = (child for child in children if child.get("type") not in _MEMORY)
        if any(id(child) in self.with_memory for child in beside):
            return None
        near = [found for found in memory if _near(found)]
        above = [found for found in near if id(found) in self.with_cpus]
        if above:
            return above[0] if len(above) == 1 else None
        return near[0] if near else None

    def _object(self, node: Node, parent: str, home: str) -> None:
        kind = node.get("type")
        if kind in ("Bridge", "PCIDev"):
            self.pci.top(node, home)
            return
        if kind == "NUMANode":
            parent = home = self.ids[id(node)]
        elif kind in ("Package", "Socket"):
            parent = self.ids[id(node)] = self._add(Kind.PACKAGE, "PKG", parent, node)
            home = parent if home == "HOST" else home
        elif kind == "Core":
            parent = self._add(Kind.CORE, "CORE", parent, node)
        elif _CACHE.fullmatch(kind) and node.get("cache_type", _SHARED) in (_SHARED, _DATA):
            stem, size = f"L{node.number('depth', NAME) or 0}:", node.number("cache_size", NAME)
            parent = self._add(Kind.CACHE, stem, parent, node, size=size)
        self._objects(node, parent, home)

    def _add(self, kind: Kind, stem: str, parent: str, node: Node, **facts: Value | None) -> str:
        """Add a device, numbered as in the file where that counts them once."""
        numbered = kind in (Kind.NUMA, Kind.PACKAGE)
        said = node.number("os_index", NAME) if numbered else None
        count = self.counts.get(stem, 0)
        self.counts[stem] = count + 1
        index = count if said is None or said < 0 or f"{stem}{said}" in self.draft.devices else said
        while f"{stem}{index}" in self.draft.devices:
            index += 1
        facts["cpus"] = from_mask(node.get("cpuset")) or None
        if kind is Kind.NUMA:
            facts["memory"] = node.number("local_memory", NAME)
        if kind is Kind.PACKAGE:
            info = infos(node)
            facts["model"] = info.get("CPUModel")
            facts["vendor"] = info.get("CPUVendor")
            facts["family"] = _integer(info.get("CPUFamilyNumber"))
            facts["cpu_model"] = _integer(info.get("CPUModelNumber"))
            if "vendor" not in {f.name for f in self.draft.facts} and facts["vendor"]:
                self.draft.machine(**{n: facts[n] for n in ("vendor", "family", "cpu_model")})
        name = stem.removesuffix(":") if kind is Kind.CACHE else ""
        id = self.draft.add(f"{stem}{index}", kind, index, name=name, parent=parent)
        self.draft.state(id, **facts)
        return id

    def _ends(self, nodes: list[Node], placed: Mapping[str, str]) -> dict[str, str]:
        """Devices as matrices call them: ``OSDev:802`` by gp index, ``NUMANode@0`` by os index."""
        found: dict[str, str] = {}
        for node in nodes:
            device = self.ids.get(id(node)) or placed.get(canonical(node.get("pci_busid")) or "")
            if device is not None:
                found[f"{node.get('type')}@{node.get('os_index')}"] = device
                for named in (node, *node.all("object")):
                    if named is node or named.get("type") == "OSDev":
                        found[f"{named.get('type')}:{named.get('gp_index')}"] = device
        return found

    def _account(self, nodes: list[Node]) -> None:
        """Count the file's devices, whatever their place in the tree."""
        types = Counter(node.get("type") for node in nodes)
        self.draft.count(Kind.PACKAGE, types["Package"] + types["Socket"])
        self.draft.count(Kind.NUMA, types["NUMANode"])
        self.draft.count(Kind.CORE, types["Core"])
        for name, number in sorted(types.items()):
            if not _CPUS.fullmatch(name) and name not in _OTHERS:
                self.draft.gap("objects", name, f"{number} of a type that is unknown here")


def _contents(machine: Node) -> tuple[set[int], set[int]]:
    """The ids of the nodes that have memory in them, and of those that have CPUs."""
    memory: set[int] = set()
    cpus: set[int] = set()
    for node in reversed(list(machine.walk())):
        kind = node.get("type")
        inside = [id(child) for child in node.children]
        if kind == "NUMANode" or not memory.isdisjoint(inside):
            memory.add(id(node))
        if _CPUS.fullmatch(kind) or not cpus.isdisjoint(inside):
            cpus.add(id(node))
    return memory, cpus


def _memory(node: Node) -> list[Node]:
    """The NUMA nodes that an object is: itself, or what a memory-side cache caches."""
    if node.get("type") == "NUMANode":
        return [node]
    if node.get("type") == "MemCache":
        return [found for child in node.all("object") for found in _memory(child)]
    return []


def _near(memory: Node) -> bool:
    """Whether this memory belongs to CPUs: a GPU's does not, nor in hwloc 1 an NVDIMM's."""
    cpus = memory.get("cpuset")
    return memory.get("subtype") != "GPUMemory" and (not cpus or bool(from_mask(cpus)))


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 10 else None
