"""Linux's own view: the PCI tree, link speeds, NUMA, NICs, CPUs, caches, ACS and IOMMU.

``snapshot`` writes the few attributes that matter as lines of ``path:value``, which is what
``grep -rH . /sys/devices/pci* …`` prints as well; ``parse`` reads such lines, from any machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from busbar.cpulist import members
from busbar.errors import ProbeError
from topology.model.busid import canonical
from topology.model.topology import Kind, Topology
from topology.sources.draft import Draft
from topology.sources.pcitree import Function, place, root_of
from topology.sources.sysfs_cpu import Cpus
from topology.sources.sysfs_pci import acs_control, function_facts
from topology.sources.text import lines

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
    """Look at the machine, or at a copy of its sys and proc below ``root``. ProbeError if none."""
    return parse(snapshot(root))


def snapshot(root: Path = Path("/")) -> str:
    """Return the attributes of ``root/sys`` and ``root/proc`` that ``parse`` reads, as text."""
    sys = root / "sys"
    if not (sys / "devices").is_dir():
        raise ProbeError(NAME, f"no {sys / 'devices'}: this is no Linux, or sysfs is not mounted")
    found = [*_pci_lines(sys), *_system_lines(sys), *_proc_lines(root)]
    return "".join(f"{path}:{value}\n" for path, value in found)


def parse(text: str) -> Topology:
    """Read the lines of a snapshot. Raises ProbeError when not one of them is sysfs's."""
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
    """An attribute's text, or None where it is missing or may not be read (both are ordinary)."""
    try:
        if not path.is_file():  # a pipe in a copied tree would be waited for
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
    # The folder may be empty: then the kernel has no IOMMU, which is worth a line.
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
        # VMD opens another root complex inside a device; what is below belongs to the last one.
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
            # RDMA names first: NCCL and topo -m know NICs by them.
            function.names = (*names.get("infiniband", ()), *names.get("net", ()))
            function.facts = function_facts(values, function.names)
        place(self.draft, self.functions, self._homes(numas))
        if self.iommus is not None:
            self.draft.machine(iommu="on" if self.iommus else "off")
        if self.cpus.info.get("hypervisor") == "yes":
            self.draft.machine(hypervisor=True)
        return self.draft.build()

    def _homes(self, numas: list[int]) -> dict[str, str]:
        """The NUMA node of each root complex, by its devices; one node leaves no question."""
        homes: dict[str, str] = {}
        for function in self.functions.values():
            said = self.values.get(function.busid, {}).get("numa_node", "-1")
            nodes = members(said) if said != "-1" else None
            if nodes and nodes[0] in numas:
                homes.setdefault(function.root, f"NUMA{nodes[0]}")
        alone = f"NUMA{numas[0]}" if len(numas) == 1 else "HOST"
        return {f.root: homes.get(f.root, alone) for f in self.functions.values()}
