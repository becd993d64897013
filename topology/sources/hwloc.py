"""hwloc's XML (``lstopo --of xml``): packages, NUMA nodes, caches, cores and the PCI tree.

hwloc states bandwidths in MB/s, summed over the links of a pair, each at the rate of its version:
20,000 for NVLink 1, 50,000 for NVLink 5, 25,000 between them (its ``topology-nvml.c``), or 50,000
for NVLink 3 and 4 in older versions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from busbar.cpulist import from_mask
from busbar.errors import ProbeError
from busbar.units import format_count
from topology.model.device import Gap, Value, canonical
from topology.model.rates import MAX_NVLINKS
from topology.model.topology import Kind, LinkKind, Topology
from topology.sources.draft import NVSWITCH, Draft, Function, place
from topology.sources.text import Node, bounded, tree

_BANDWIDTH = 8  # of hwloc_distances_kind_e
MAX_OBJECTS = 1024
_NVLINK_1, _NVLINK_2_TO_4, _NVLINK_5 = 20_000, 25_000, 50_000
_VERSIONS = {_NVLINK_1: 1, _NVLINK_5: 5}
#: Until 2.9.1 hwloc gave NVLink 3 and 4 the rate of NVLink 5 (its issue 574).
_WITH_NVLINK_5 = re.compile(r"\bG?B[123]\d\d\b|Blackwell", re.IGNORECASE)


@dataclass(frozen=True)
class _Matrix:
    """A matrix with the key of each row (as in ``ends``) and the line at which it starts."""

    name: str
    kind: int
    keys: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]
    line: int

    def pairs(self) -> Iterator[tuple[str, str, int, int]]:
        """Each pair of rows with its values in both directions."""
        for (n, a), (m, b) in combinations(enumerate(self.keys), 2):
            yield a, b, self.values[n][m], self.values[m][n]


def add_links(draft: Draft, root: Node, ends: Mapping[str, str]) -> None:
    """Add the links in the matrices. Raises ProbeError, with the line, if one is not square.

    ``ends``: the device of ``OSDev:802`` (by gp index) or ``NUMANode@0`` (by os index).
    """
    matrices = [_read(draft, node) for node in root.all("distances2", "distances2hetero")]
    hops = next((m for m in matrices if m.name == "XGMIHops"), None)
    for matrix in matrices:
        if matrix.name == "NVLinkBandwidth":
            _nvlinks(draft, matrix, ends)
        elif matrix.name == "XGMIBandwidth":
            _xgmi(draft, matrix, hops, ends)
        elif matrix.name == "NUMALatency":
            _latencies(draft, matrix, ends)
        elif matrix.kind & _BANDWIDTH:
            count = sum(1 for *_, there, back in matrix.pairs() if there or back)
            draft.gap("links", matrix.name, f"line {matrix.line}: {count} pairs that are not read")


def _read(draft: Draft, node: Node) -> _Matrix:
    size, kind = (node.number(name, draft.source) or 0 for name in ("nbobjs", "kind"))
    words = [word for child in node.all("indexes") for word in child.text.split()]
    if node.tag == "distances2":
        sign = "@" if node.get("indexing") == "os" else ":"
        words = [f"{node.get('type')}{sign}{word}" for word in words]
    values = [word for child in node.all("u64values") for word in child.text.split()]
    wrong = next((v for v in values if not (v.isascii() and v.isdecimal() and len(v) < 20)), None)
    if wrong is not None or len(words) != size or len(values) != size**2 or size > MAX_OBJECTS:
        reason = f"a matrix of {size} objects has {len(words)} indexes and {len(values)} values"
        if wrong is not None:
            reason = f"a matrix has {wrong[:40]!r}, which is no number"
        raise ProbeError(draft.source, reason, node.line)
    rows = tuple(tuple(map(int, values[n * size : (n + 1) * size])) for n in range(size))
    return _Matrix(node.get("name"), kind, tuple(words), rows, node.line)


def _linked(
    draft: Draft, matrix: _Matrix, ends: Mapping[str, str]
) -> Iterator[tuple[str, str, int]]:
    """The ends and lower value of each pair that has one; pairs of other objects become gaps."""
    lost: list[str] = []
    for a, b, there, back in matrix.pairs():
        if not (there or back):
            continue
        first, second = ends.get(a), ends.get(b)
        if first is None or second is None or first == second:
            lost.append(f"{a} and {b}")
            continue
        if there != back:
            why = f"line {matrix.line}: {there} one way, {back} the other; the lower is taken"
            draft.gap(f"{first} and {second}", matrix.name, why)
        if min(there, back):
            yield first, second, min(there, back)
    if lost:
        why = (
            f"line {matrix.line}: {format_count(len(lost), 'pair')} of other objects, as {lost[0]}"
        )
        draft.gap("links", matrix.name, why)


def _nvlinks(draft: Draft, matrix: _Matrix, ends: Mapping[str, str]) -> None:
    each = _each(matrix, draft, ends)
    models = [str(m) for key in matrix.keys if (m := _model(draft, ends.get(key)))]
    link_rate = each
    if each == _NVLINK_5 and models and not any(map(_WITH_NVLINK_5.search, models)):
        why = f"line {matrix.line}: {each} MB/s a link, which hwloc of before 2.9.1 doubled; halved"
        draft.gap("links", matrix.name, why)
        link_rate = _NVLINK_2_TO_4
    for a, b, value in _linked(draft, matrix, ends):
        count = value // each
        if value % each or not 0 < count <= 1024:
            why = f"line {matrix.line}: {value} MB/s is no number of links of {each} MB/s"
            draft.gap(f"{a} and {b}", matrix.name, why)
        if 0 < count <= 1024:
            rate, version = link_rate * 1e6, _VERSIONS.get(link_rate)
            draft.link(LinkKind.NVLINK, min(a, b), max(a, b), count, version=version, rate=rate)
    _planes(draft, matrix)


def _model(draft: Draft, id: str | None) -> Value | None:
    """The model of a GPU; None for other devices, and if the file does not name it."""
    device = draft.devices.get(id or "")
    return device.get("model") if device is not None and device.kind is Kind.GPU else None


def _planes(draft: Draft, matrix: _Matrix) -> None:
    """Record a gap if NVSwitches are in several groups: hwloc has no links between switches."""
    switches: list[set[str]] = []
    for gpu in (device.id for device in draft.devices.values() if device.kind is Kind.GPU):
        ends = {end for link in draft.links if gpu in (link.a, link.b) for end in (link.a, link.b)}
        mine = {end for end in ends if draft.devices[end].kind is Kind.SWITCH}
        apart = [group for group in switches if not group & mine]
        joined = mine.union(*(group for group in switches if group & mine))
        switches = [*apart, joined] if joined else apart
    if len(switches) > 1:
        why = f"{len(switches)} groups of NVSwitches; the file tells no links between them"
        draft.gap("NVSwitches", matrix.name, f"line {matrix.line}: {why}")


def _each(matrix: _Matrix, draft: Draft, ends: Mapping[str, str]) -> int:
    """MB/s of one NVLink: the rate that divides all values and fits the number of a GPU's ports."""
    values = [value for *_, there, back in matrix.pairs() for value in (there, back)]
    if any(value % _NVLINK_2_TO_4 for value in values):
        return _NVLINK_1
    sums = [
        sum(row) - row[n]
        for n, (key, row) in enumerate(zip(matrix.keys, matrix.values, strict=True))
        if key in ends and draft.devices[ends[key]].kind is Kind.GPU
    ]
    most = MAX_NVLINKS * _NVLINK_2_TO_4
    return _NVLINK_5 if max(sums, default=0) > most else _NVLINK_2_TO_4


def _xgmi(draft: Draft, matrix: _Matrix, hops: _Matrix | None, ends: Mapping[str, str]) -> None:
    """Add one link per pair: hwloc writes the same rate for every pair, whatever its links."""
    far = set()
    if hops is not None:
        far = {frozenset((a, b)) for a, b, *counts in hops.pairs() if max(counts) > 1}
    direct = 0
    apart = {frozenset(ends.get(key, key) for key in pair) for pair in far}
    for a, b, _ in _linked(draft, matrix, ends):
        if frozenset((a, b)) not in apart:
            direct += 1
            draft.link(LinkKind.NVLINK, min(a, b), max(a, b))
    if direct:
        why = (
            f"line {matrix.line}: {direct} pairs, each taken as one link; hwloc does not count them"
        )
        draft.gap("links", matrix.name, why)


def _latencies(draft: Draft, matrix: _Matrix, ends: Mapping[str, str]) -> None:
    for a, b, there, back in matrix.pairs():
        if a in ends and b in ends:
            draft.pair(ends[a], ends[b], numa_distance=there)
            draft.pair(ends[b], ends[a], numa_distance=back)


_PCI_TYPE = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", re.I)
_HOST_BRIDGE = re.compile(r"([0-9a-f]{4,8}):\[([0-9a-f]{2})-", re.I)


#: Bits of ``osdev_type`` since hwloc 3, and their meaning for the numbers in older versions.
_PROCESSOR, _NETWORK, _RDMA = 1 << 3, 1 << 4, 1 << 5
_BEFORE_3 = {2: _NETWORK, 3: _RDMA, 5: _PROCESSOR}


@dataclass
class Pci:
    """PCI functions by bus id, and the home (NUMA node, package or host) of each root complex."""

    draft: Draft
    before_3: bool
    functions: dict[str, Function] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    unnamed: int = 0

    def top(self, node: Node, home: str) -> None:
        """Read a host bridge with its contents, or a function without a host bridge.

        Raises ProbeError, with the line, for a function without a bus id.
        """
        match = _HOST_BRIDGE.match(node.get("bridge_pci"))
        host = node.get("type") == "Bridge" and node.get("bridge_type", "0-1").startswith("0")
        if host and match:
            root = f"{int(match[1], 16):04x}:{match[2].lower()}"
        elif host:
            self.unnamed += 1
            root = f"host bridge {self.unnamed}"
        else:
            # Functions of one bus are below one host bridge.
            root = (canonical(node.get("pci_busid")) or "").rpartition(":")[0]
        self.homes[root] = home
        if host:
            self._below(node, root, ())
        else:
            self._add_function(node, root, ())

    def account(self, nodes: list[Node]) -> None:
        """Count the file's devices, wherever they are; interfaces on no device become gaps."""
        functions = [n for n in nodes if n.get("type") in ("PCIDev", "Bridge")]
        placed = Counter(self._function(n, "", ()).kind for n in functions if n.get("pci_busid"))
        for kind in (Kind.GPU, Kind.NIC, Kind.SWITCH):
            self.draft.count(kind, placed[kind])
        loose = [child for node in nodes if not self._placed(node) for child in _os_devices(node)]
        for what, kinds in (("interfaces", _RDMA | _NETWORK), ("processors", _PROCESSOR)):
            fitting = [node for node in loose if self._kinds(node) & kinds]
            if fitting:
                names = ", ".join(node.get("name") for node in fitting[:4])
                why = f"{len(fitting)} that are on no PCI device of the map, as {names}"
                self.draft.gap(what, "OSDev", f"from line {fitting[0].line}: {why}")

    def _kinds(self, node: Node) -> int:
        mask = node.number("osdev_type", self.draft.source) or 0
        return _BEFORE_3.get(mask, 0) if self.before_3 else mask

    def _placed(self, node: Node) -> bool:
        function = self.functions.get(canonical(node.get("pci_busid")) or "")
        return function is not None and function.kind is not None

    def _below(self, node: Node, root: str, bridges: tuple[str, ...]) -> None:
        for child in node.all("object"):
            if child.get("type") in ("Bridge", "PCIDev"):
                self._add_function(child, root, bridges)

    def _add_function(self, node: Node, root: str, bridges: tuple[str, ...]) -> None:
        function = self._function(node, root, bridges)
        busid = function.busid
        if busid in self.functions:
            why = f"line {node.line}: it appears twice; this one is out"
            self.draft.gap(busid, "pci_busid", why)
        self.functions.setdefault(busid, function)
        self._below(node, root, (*bridges, busid))

    def _function(self, node: Node, root: str, bridges: tuple[str, ...]) -> Function:
        busid = canonical(node.get("pci_busid"))
        if busid is None:
            address = node.get("pci_busid")
            raise ProbeError(
                self.draft.source, f"pci_busid={address!r} appears without being one", node.line
            )
        function = Function(busid, root, bridges)
        match = _PCI_TYPE.match(node.get("pci_type"))
        if match:
            function.pci_class, function.vendor = f"0x{match[1].lower()}00", f"0x{match[2].lower()}"
            function.facts["pci_device"] = f"0x{match[3].lower()}"
        if node.get("subtype") == "NVSwitch":
            # NVML states this if hwloc could not read the function's class.
            function.pci_class, function.vendor = NVSWITCH
        self._names(node, function)
        return function

    def _names(self, node: Node, function: Function) -> None:
        """Set names and facts: RDMA names first, because NCCL and topo -m use these for NICs."""
        devices = _os_devices(node)
        rdma, net = ([d for d in devices if self._kinds(d) & kind] for kind in (_RDMA, _NETWORK))
        names = (d.get("name") for d in (*rdma, *net) if d.get("name"))
        function.names = tuple(dict.fromkeys(names))
        facts = function.facts
        facts["model"] = next((m for d in devices if (m := infos(d).get("GPUModel"))), None)
        facts["pci_name"] = infos(node).get("PCIDevice")
        facts["net_names"] = function.names or None
        facts["guid"] = next((g for d in rdma if (g := infos(d).get("NodeGUID"))), None)
        speed = node.get("pci_link_speed")
        if re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,9})?", speed) and float(speed) > 0:
            facts["pcie_rate"] = float(speed) * 1e9


def infos(node: Node) -> dict[str, str]:
    """The values of an object's <info> children by name, without empty ones."""
    return {info.get("name"): info.get("value") for info in node.all("info") if info.get("value")}


def _os_devices(node: Node) -> list[Node]:
    return [child for child in node.all("object") if child.get("type") == "OSDev"]


NAME = "hwloc"
MAX_HOSTS = 1024
#: How a document begins.
_DOCUMENT = re.compile(r"^[ \t]*<\?xml\s", re.M)
_CACHE = re.compile(r"L[1-5](?:Cache)?|Cache")
_SHARED, _DATA = "0", "1"
_MEMORY = ("NUMANode", "MemCache")
#: Objects that hold CPUs. Packages, cores and data caches become devices, others do not.
_CPUS = re.compile(r"Package|Socket|Die|Core|PU|L[1-5]i?(?:Cache)?|Cache")
_OTHERS = {"Machine", "System", "Group", "Misc", *_MEMORY, "Bridge", "PCIDev", "OSDev"}


def parse(text: str) -> Topology:
    """Parse XML of hwloc 1, 2 or 3, of one machine or several, which become hosts of one map.

    Several machines are below one System object, as hwloc-assembler writes them, or are documents
    one after the other. Raises ProbeError, with the line, for other XML.
    """
    starts = [match.start() for match in _DOCUMENT.finditer(bounded(NAME, text))]
    parts = [text]
    if len(starts) > 1:
        ends = [*starts[1:], len(text)]
        parts = [text[start:end] for start, end in zip([0, *starts[1:]], ends, strict=True)]
    if len(parts) > MAX_HOSTS:
        raise ProbeError(NAME, f"{len(parts)} documents; at most {MAX_HOSTS} are read")
    match, skipped = list[Topology](), 0
    for part in parts:
        match += _document(part, skipped)
        skipped += part.count("\n")
    return match[0] if len(match) == 1 else _together(match)


def _document(text: str, above: int) -> list[Topology]:
    """The map of each machine of a document; ``above``: the number of lines before it."""
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
    maps = [_Reader(before_3, machine).read(bare, machine) for machine in machines]
    if lost := [node for node in root.children if node.tag.startswith("distances")]:
        # Rows of these matrices are object numbers, which are not unique across machines.
        why = f"line {lost[0].line}: {len(lost)} matrices over several machines are not read"
        maps[0] = replace(maps[0], gaps=(*maps[0].gaps, Gap(NAME, "links", "distances", why)))
    return maps


def _together(maps: list[Topology]) -> Topology:
    """Join hosts into one map: GPUs and NICs are numbered across all hosts."""
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
        add_links(self.draft, root, self._devices_by_name(nodes, placed))
        self._account(nodes)
        self.pci.account(nodes)
        return self.draft.build()

    def _objects(self, node: Node, parent: str, home: str) -> None:
        """Visit all objects; its type decides whether an object becomes a device.

        hwloc 1 has memory above the CPUs that it serves, hwloc 2 beside them. In the map, memory of
        the CPUs beside it is above them. Memory of a GPU, of CXL, or of a larger part of the
        machine whose CPUs have memory of their own, is a leaf.
        """
        children = node.all("object")
        memory = [inner for child in children for inner in _memory(child)]
        for inner in memory:
            if id(inner) not in self.ids:
                self.ids[id(inner)] = self._add(Kind.NUMA, "NUMA", parent, inner)
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
        near = [node for node in memory if _near(node)]
        above = [node for node in near if id(node) in self.with_cpus]
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
        """Add a device, with the file's number if that is unique."""
        numbered = kind in (Kind.NUMA, Kind.PACKAGE)
        number = node.number("os_index", NAME) if numbered else None
        count = self.counts.get(stem, 0)
        self.counts[stem] = count + 1
        index = (
            count
            if number is None or number < 0 or f"{stem}{number}" in self.draft.devices
            else number
        )
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

    def _devices_by_name(self, nodes: list[Node], placed: Mapping[str, str]) -> dict[str, str]:
        """Devices by names in matrices: ``OSDev:802`` (by gp index), ``NUMANode@0`` (os index)."""
        ends: dict[str, str] = {}
        for node in nodes:
            device = self.ids.get(id(node)) or placed.get(canonical(node.get("pci_busid")) or "")
            if device is not None:
                ends[f"{node.get('type')}@{node.get('os_index')}"] = device
                for named in (node, *node.all("object")):
                    if named is node or named.get("type") == "OSDev":
                        ends[f"{named.get('type')}:{named.get('gp_index')}"] = device
        return ends

    def _account(self, nodes: list[Node]) -> None:
        types = Counter(node.get("type") for node in nodes)
        self.draft.count(Kind.PACKAGE, types["Package"] + types["Socket"])
        self.draft.count(Kind.NUMA, types["NUMANode"])
        self.draft.count(Kind.CORE, types["Core"])
        for name, number in sorted(types.items()):
            if not _CPUS.fullmatch(name) and name not in _OTHERS:
                self.draft.gap("objects", name, f"{number} of a type that is unknown here")


def _contents(machine: Node) -> tuple[set[int], set[int]]:
    """The Python ids of the nodes that contain memory, and of those that contain CPUs."""
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
    """The NUMA nodes of an object: itself, or those behind a memory-side cache."""
    if node.get("type") == "NUMANode":
        return [node]
    if node.get("type") == "MemCache":
        return [inner for child in node.all("object") for inner in _memory(child)]
    return []


def _near(memory: Node) -> bool:
    """True if this memory belongs to CPUs: not a GPU's, nor in hwloc 1 an NVDIMM's."""
    cpus = memory.get("cpuset")
    return memory.get("subtype") != "GPUMemory" and (not cpus or bool(from_mask(cpus)))


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 10 else None
