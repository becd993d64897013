"""Linux's sysfs: the PCI tree, link speeds, NUMA, NICs, CPUs, caches, ACS and IOMMU.

``snapshot`` writes the relevant attributes as lines of ``path:value``, like ``grep -rH .
/sys/devices/pci* …``; ``parse`` reads such lines, from any machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from busbar.cpulist import MAX_CPU, listed, members
from busbar.errors import ProbeError
from topology.model.device import Value, canonical
from topology.model.rates import generation
from topology.model.topology import Kind, Topology
from topology.sources.draft import Draft, Function, place, root_of
from topology.sources.text import lines

_UNITS = {"K": 2**10, "M": 2**20, "": 1}
_ARM, _POWER = "arm64", "ppc64"


@dataclass
class Cpus:
    """The attributes below devices/system, and of /proc/cpuinfo."""

    info: dict[str, str] = field(default_factory=dict)
    nodes: dict[int, dict[str, str]] = field(default_factory=dict)
    cpus: dict[int, dict[str, str]] = field(default_factory=dict)
    caches: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)

    def line(self, path: list[str], name: str, value: str, number: int) -> None:
        """Read a line; ``path`` begins below devices/system."""
        match = re.fullmatch(r"(node|cpu)([0-9]{1,6})", path[1]) if len(path) > 1 else None
        if match is None:
            return
        index = int(match[2])
        if index >= MAX_CPU:
            raise ProbeError("sysfs", f"{path[1]} is beyond any machine", number)
        if match[1] == "node" and len(path) == 2:
            self.nodes.setdefault(index, {})[name] = value
        elif match[1] == "cpu" and path[2:3] == ["topology"]:
            self.cpus.setdefault(index, {})[name] = value
        elif match[1] == "cpu" and path[2:3] == ["cache"] and len(path) == 4:
            self.caches.setdefault((index, path[3]), {})[name] = value

    def add(self, draft: Draft) -> list[int]:
        """Add packages, NUMA nodes, caches and cores; returns the numbers of the NUMA nodes."""
        self._machine(draft)
        owners = self._packages(draft)
        home: dict[int, str] = {}
        for index, facts in sorted(self.nodes.items()):
            cpus = members(facts.get("cpulist", "")) or []
            packages = {owners[cpu] for cpu in cpus if cpu in owners}
            kb = facts.get("memory_kb", "")
            id = draft.add(
                f"NUMA{index}",
                Kind.NUMA,
                index,
                parent=packages.pop() if len(packages) == 1 else "HOST",
                cpus=listed(cpus) or None,
                memory=int(kb[:15]) * 1024 if kb.isdecimal() else None,
            )
            home.update(dict.fromkeys(cpus, id))
        self._distances(draft)
        self._cores(draft, self._caches(draft, home, owners), home, owners)
        return sorted(self.nodes)

    def _machine(self, draft: Draft) -> None:
        arch = "x86_64" if "vendor_id" in self.info else None
        if "CPU implementer" in self.info:
            arch = _ARM
        elif self.info.get("cpu", "").startswith("POWER"):
            arch = _POWER
        draft.machine(arch=arch, vendor=self.info.get("vendor_id"), kernel=self.info.get("kernel"))
        draft.machine(model=self.info.get("model name") or self.info.get("cpu"))
        for fact, key in (("family", "cpu family"), ("cpu_model", "model")):
            if self.info.get(key, "").isdecimal():
                draft.machine(**{fact: int(self.info[key][:6])})

    def _packages(self, draft: Draft) -> dict[int, str]:
        owners: dict[int, str] = {}
        for cpu, facts in sorted(self.cpus.items()):
            package = facts.get("physical_package_id", "")
            if package.isdecimal():
                id = f"PKG{int(package[:6])}"
                if id not in draft.devices:
                    draft.add(id, Kind.PACKAGE, int(package[:6]), parent="HOST")
                owners[cpu] = id
        return owners

    def _distances(self, draft: Draft) -> None:
        numbers = sorted(self.nodes)
        for a in numbers:
            row = self.nodes[a].get("distance", "").split()
            if len(row) == len(numbers) and all(item.isdecimal() for item in row):
                for b, item in zip(numbers, row, strict=True):
                    if a != b:
                        draft.pair(f"NUMA{a}", f"NUMA{b}", numa_distance=int(item[:6]))

    def _caches(self, draft: Draft, home: dict[int, str], owners: dict[int, str]) -> dict[int, str]:
        """Add caches of the last level only; nearer ones are a detail of the core."""
        data = [
            c
            for c in self.caches.values()
            if c.get("type") != "Instruction" and c.get("level", "").isdecimal()
        ]
        last = max((int(cache["level"][:3]) for cache in data), default=0)
        shared: dict[str, int | None] = {
            cache["shared_cpu_list"]: _size(cache.get("size", ""))
            for cache in data
            if int(cache["level"][:3]) == last and members(cache.get("shared_cpu_list", ""))
        }
        inside: dict[int, str] = {}
        for index, text in enumerate(sorted(shared, key=lambda t: members(t) or [])):
            cpus = members(text) or []
            parent = home.get(cpus[0]) or owners.get(cpus[0], "HOST")
            id = draft.add(
                f"L{last}:{index}", Kind.CACHE, index, name=f"L{last}", parent=parent, cpus=text
            )
            draft.state(id, size=shared[text])
            inside.update(dict.fromkeys(cpus, id))
        return inside

    def _cores(
        self, draft: Draft, caches: dict[int, str], home: dict[int, str], owners: dict[int, str]
    ) -> None:
        threads = {
            facts.get("thread_siblings_list", str(cpu)): cpu for cpu, facts in self.cpus.items()
        }
        whole = {text: cpus for text in threads if (cpus := members(text))}
        for index, text in enumerate(sorted(whole, key=lambda t: whole[t])):
            first = whole[text][0]
            parent = caches.get(first) or home.get(first) or owners.get(first, "HOST")
            draft.add(f"CORE{index}", Kind.CORE, index, parent=parent, cpus=text)


def _size(text: str) -> int | None:
    match = re.fullmatch(r"([0-9]{1,12})([KM]?)", text)
    return int(match[1]) * _UNITS[match[2]] if match else None


_ACS_CAPABILITY = 0x000D
#: Request, completion and upstream redirect: any of them sends peer traffic to the root complex.
_REDIRECT = 0x04 | 0x08 | 0x10


def function_facts(values: dict[str, str], names: tuple[str, ...]) -> dict[str, Value | None]:
    """The facts of a function from its attributes; unknown speeds and zero widths are left out."""
    acs = _integer(values.get("acs_control"), 16)
    return {
        "pci_device": values.get("device"),
        "pcie_gen": generation(values.get("current_link_speed", "")),
        "pcie_gen_max": generation(values.get("max_link_speed", "")),
        "pcie_width": _width(values.get("current_link_width")),
        "pcie_width_max": _width(values.get("max_link_width")),
        "iommu": values.get("iommu_type"),
        "acs": None if acs is None else bool(acs & _REDIRECT),
        "net_names": names or None,
        "net_rate": _net_rate(values),
        "net_state": values.get("infiniband/state") or values.get("net/operstate"),
        "guid": values.get("infiniband/node_guid"),
    }


def acs_control(config: Path) -> int | None:
    """The ACS control register of a port, or None if it has none or it may not be read.

    Extended capabilities start at 0x100 and are chained by offsets; only root may read that far.
    """
    try:
        data = config.read_bytes()[:4096]
    except OSError:
        return None
    at, seen = 0x100, set()
    while 0x100 <= at <= len(data) - 8 and at not in seen:
        seen.add(at)
        head = int.from_bytes(data[at : at + 4], "little")
        if head & 0xFFFF == _ACS_CAPABILITY:
            return int.from_bytes(data[at + 6 : at + 8], "little")
        at = head >> 20
    return None


def _integer(text: str | None, base: int = 10) -> int | None:
    try:
        return None if text is None else int(text[:16], base)
    except ValueError:
        return None


def _width(text: str | None) -> int | None:
    width = _integer(text)
    # sysfs writes 255 or 0 for "no link".
    return width if width is not None and 0 < width <= 32 else None


def _net_rate(values: dict[str, str]) -> float | None:
    """Bytes per second: from RDMA's ``200 Gb/sec (4X HDR)``, else from the interface's Mbit/s."""
    match = re.match(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", values.get("infiniband/rate", ""))
    if match:
        return float(match[1]) * 1e9 / 8
    speed = _integer(values.get("net/speed"))
    return speed * 1e6 / 8 if speed is not None and speed > 0 else None


NAME = "sysfs"
MAX_VALUE = 4096
_PCI = ("class", "vendor", "device", "numa_node", "current_link_speed", "current_link_width",
        "max_link_speed", "max_link_width", "iommu_type")  # fmt: skip
_NODE = ("cpulist", "distance")
_CPU = ("physical_package_id", "core_id", "thread_siblings_list")
_CACHE = ("level", "type", "size", "shared_cpu_list")
_INFO = ("vendor_id", "cpu family", "model", "model name", "CPU implementer", "CPU part", "cpu")
_LINE = re.compile(
    r"(?P<path>[^\t]*?(?:devices/pci|devices/system/|kernel/iommu|class/iommu|proc/cpuinfo)[^\t]*?)"
    r"/(?P<name>[A-Za-z_]+|cpu family|model name|CPU implementer|CPU part):(?P<value>.*)"
)


def read(root: Path = Path("/")) -> Topology:
    """Read this machine, or a copy of its sys and proc below ``root``. Raises ProbeError."""
    return parse(snapshot(root))


def snapshot(root: Path = Path("/")) -> str:
    """The attributes of ``root/sys`` and ``root/proc`` that ``parse`` reads, as text."""
    sys = root / "sys"
    if not (sys / "devices").is_dir():
        raise ProbeError(NAME, f"no {sys / 'devices'}: this is no Linux, or sysfs is not mounted")
    lines = [*_pci_lines(sys), *_system_lines(sys), *_proc_lines(root)]
    return "".join(f"{path}:{value}\n" for path, value in lines)


def parse(text: str) -> Topology:
    """Parse the lines of a snapshot. Raises ProbeError if no line is from sysfs."""
    reader = _Reader()
    count = 0
    for number, line in enumerate(lines(NAME, text), 1):
        match = _LINE.fullmatch(line)
        if match:
            count += 1
            reader.line(match["path"].split("/"), match["name"], match["value"].strip(), number)
    if not count:
        raise ProbeError(
            NAME, "no line such as /sys/devices/pci0000:00/0000:00:01.0/class:0x060400"
        )
    return reader.topology()


# -- reading the machine


def _value(path: Path) -> str | None:
    """An attribute's text, or None if it is missing or may not be read (both are common)."""
    try:
        if not path.is_file():  # reading a pipe in a copied tree would block
            return None
        with path.open("rb") as file:
            return file.read(MAX_VALUE).decode("utf-8", "replace").strip().replace("\n", " ")
    except OSError:
        return None


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _attributes(folder: Path, base: Path, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name in names:
        value = _value(folder / name)
        if value:
            yield str(folder.relative_to(base) / name), value


def _pci_lines(sys: Path) -> Iterator[tuple[str, str]]:
    base = sys.parent
    for root in _entries(sys / "devices"):
        if root_of(root.name):
            yield from _pci_folder(root, base)
    # The folder may be empty if the kernel has no IOMMU, which is worth a line.
    yield "sys/class/iommu/count", str(len(_entries(sys / "class/iommu")))


def _pci_folder(folder: Path, base: Path) -> Iterator[tuple[str, str]]:
    for path in _entries(folder):
        if canonical(path.name) is None:
            continue
        here = str(path.relative_to(base))
        yield from _attributes(path, base, tuple(n for n in _PCI if n != "iommu_type"))
        kind = _value(path / "iommu_group/type")
        if kind:
            yield f"{here}/iommu_type", kind
        acs = acs_control(path / "config")
        if acs is not None:
            yield f"{here}/acs_control", f"0x{acs:04x}"
        virtio = [child for child in _entries(path) if child.name.startswith("virtio")]
        for net in (net for folder in (path, *virtio) for net in _entries(folder / "net")):
            yield f"{net.relative_to(base)}/name", net.name
            yield from _attributes(net, base, ("speed", "operstate"))
        for rdma in _entries(path / "infiniband"):
            yield f"{here}/infiniband/{rdma.name}/name", rdma.name
            yield from _attributes(rdma, base, ("node_guid",))
            for port in _entries(rdma / "ports")[:1]:
                yield from _attributes(port, base, ("rate", "state", "link_layer"))
        yield from _pci_folder(path, base)


def _system_lines(sys: Path) -> Iterator[tuple[str, str]]:
    base = sys.parent
    for node in _entries(sys / "devices/system/node"):
        if re.fullmatch(r"node\d+", node.name):
            yield from _attributes(node, base, _NODE)
            total = re.search(r"MemTotal:\s*(\d+) kB", _value(node / "meminfo") or "")
            if total:
                yield f"{node.relative_to(base)}/memory_kb", total[1]
    for cpu in _entries(sys / "devices/system/cpu"):
        if re.fullmatch(r"cpu\d+", cpu.name):
            yield from _attributes(cpu / "topology", base, _CPU)
            for index in _entries(cpu / "cache"):
                yield from _attributes(index, base, _CACHE)


def _proc_lines(root: Path) -> Iterator[tuple[str, str]]:
    text = _value(root / "proc/sys/kernel/osrelease")
    if text:
        yield "proc/cpuinfo/kernel", text
    try:
        head = (root / "proc/cpuinfo").read_bytes()[:MAX_VALUE].decode("utf-8", "replace")
    except OSError:
        return
    for name in _INFO:
        match = re.search(rf"^{re.escape(name)}\s*:\s*(.+)$", head, re.M)
        if match:
            yield f"proc/cpuinfo/{name}", match[1].strip()
    if re.search(r"^flags\s*:.*\bhypervisor\b", head, re.M):
        yield "proc/cpuinfo/hypervisor", "yes"


# -- understanding the lines


class _Reader:
    def __init__(self) -> None:
        self.draft = Draft(NAME)
        self.values: dict[str, dict[str, str]] = {}
        self.functions: dict[str, Function] = {}
        self.names: dict[str, dict[str, list[str]]] = {}
        self.cpus = Cpus()
        self.iommus: int | None = None

    def line(self, path: list[str], name: str, value: str, number: int) -> None:
        if "system" in path:
            self.cpus.line(path[path.index("system") + 1 :], name, value, number)
        elif "cpuinfo" in path:
            self.cpus.info[name] = value
        elif "iommu" in path and name == "count" and value.isdecimal():
            self.iommus = int(value[:9])
        else:
            self._pci(path, name, value, number)

    def _pci(self, path: list[str], name: str, value: str, number: int) -> None:
        at = next((n for n, part in enumerate(path) if root_of(part)), None)
        if at is None:
            return
        chain: list[str] = []
        # VMD opens another root complex inside a device; functions belong to the last one above.
        root = path[at]
        rest = path[at + 1 :]
        for part in list(rest):
            busid = canonical(part)
            if busid:
                chain.append(busid)
            elif root_of(part):
                root, chain = part, []
            else:
                break
            rest = rest[1:]
        if not chain:
            return
        busid = chain[-1]
        known = self.functions.get(busid)
        if known is None:
            self.functions[busid] = Function(busid, str(root_of(root)), tuple(chain[:-1]))
        elif known.bridges != tuple(chain[:-1]):
            raise ProbeError(
                NAME, f"{busid} stands in two places; give one machine at a time", number
            )
        values = self.values.setdefault(busid, {})
        if rest and rest[0].startswith("virtio"):
            rest = rest[1:]
        if rest and rest[0] in ("net", "infiniband") and len(rest) > 1:
            names = self.names.setdefault(busid, {}).setdefault(rest[0], [])
            if rest[1] not in names:
                names.append(rest[1])
            name = f"{rest[0]}/{name}"
        elif rest:
            return
        values.setdefault(name, value)

    def topology(self) -> Topology:
        self.draft.add("HOST", Kind.HOST)
        numas = self.cpus.add(self.draft)
        for busid, function in self.functions.items():
            values = self.values.get(busid, {})
            names = self.names.get(busid, {})
            function.pci_class, function.vendor = values.get("class", ""), values.get("vendor", "")
            # RDMA names first, because NCCL and topo -m use these for NICs.
            function.names = (*names.get("infiniband", ()), *names.get("net", ()))
            function.facts = function_facts(values, function.names)
        place(self.draft, self.functions, self._homes(numas))
        if self.iommus is not None:
            self.draft.machine(iommu="on" if self.iommus else "off")
        if self.cpus.info.get("hypervisor") == "yes":
            self.draft.machine(hypervisor=True)
        return self.draft.build()

    def _homes(self, numas: list[int]) -> dict[str, str]:
        """The NUMA node of each root complex, from its devices; a single node has them all."""
        homes: dict[str, str] = {}
        for function in self.functions.values():
            node = self.values.get(function.busid, {}).get("numa_node", "-1")
            nodes = members(node) if node != "-1" else None
            if nodes and nodes[0] in numas:
                homes.setdefault(function.root, f"NUMA{nodes[0]}")
        alone = f"NUMA{numas[0]}" if len(numas) == 1 else "HOST"
        return {f.root: homes.get(f.root, alone) for f in self.functions.values()}
