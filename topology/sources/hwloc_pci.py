"""The PCI side of hwloc's XML: host bridges, functions, and the system's names for them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from busbar.errors import ProbeError
from topology.model.busid import canonical
from topology.model.topology import Kind
from topology.sources.draft import Draft
from topology.sources.pcitree import NVSWITCH, Function
from topology.sources.xml_text import Node

_PCI_TYPE = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", re.I)
_HOST_BRIDGE = re.compile(r"([0-9a-f]{4,8}):\[([0-9a-f]{2})-", re.I)


#: Bits of ``osdev_type`` since hwloc 3, and what they are of the numbers before.
_PROCESSOR, _NETWORK, _RDMA = 1 << 3, 1 << 4, 1 << 5
_BEFORE_3 = {2: _NETWORK, 3: _RDMA, 5: _PROCESSOR}


@dataclass
class Pci:
    """Functions by bus id, and the home (NUMA node, package or host) of each root complex."""

    draft: Draft
    before_3: bool
    functions: dict[str, Function] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    unnamed: int = 0

    def top(self, node: Node, home: str) -> None:
        """Take a host bridge with what it holds, or a function without its host bridge.

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
            self._take(node, root, ())

    def account(self, nodes: list[Node]) -> None:
        """Count the file's devices, whatever their place; loose interfaces are gaps."""
        functions = [n for n in nodes if n.get("type") in ("PCIDev", "Bridge")]
        placed = Counter(self._function(n, "", ()).kind for n in functions if n.get("pci_busid"))
        for kind in (Kind.GPU, Kind.NIC, Kind.SWITCH):
            self.draft.count(kind, placed[kind])
        loose = [child for node in nodes if not self._placed(node) for child in _os_devices(node)]
        for what, kinds in (("interfaces", _RDMA | _NETWORK), ("processors", _PROCESSOR)):
            found = [node for node in loose if self._kinds(node) & kinds]
            if found:
                names = ", ".join(node.get("name") for node in found[:4])
                why = f"{len(found)} that are on no PCI device of the map, as {names}"
                self.draft.gap(what, "OSDev", f"from line {found[0].line}: {why}")

    def _kinds(self, node: Node) -> int:
        """What an OSDev is, in bits."""
        said = node.number("osdev_type", self.draft.source) or 0
        return _BEFORE_3.get(said, 0) if self.before_3 else said

    def _placed(self, node: Node) -> bool:
        function = self.functions.get(canonical(node.get("pci_busid")) or "")
        return function is not None and function.kind is not None

    def _below(self, node: Node, root: str, bridges: tuple[str, ...]) -> None:
        for child in node.all("object"):
            if child.get("type") in ("Bridge", "PCIDev"):
                self._take(child, root, bridges)

    def _take(self, node: Node, root: str, bridges: tuple[str, ...]) -> None:
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
            said = node.get("pci_busid")
            raise ProbeError(
                self.draft.source, f"pci_busid={said!r} appears without being one", node.line
            )
        function = Function(busid, root, bridges)
        match = _PCI_TYPE.match(node.get("pci_type"))
        if match:
            function.pci_class, function.vendor = f"0x{match[1].lower()}00", f"0x{match[2].lower()}"
            function.facts["pci_device"] = f"0x{match[3].lower()}"
        if node.get("subtype") == "NVSwitch":
            # NVML says so where hwloc could not see the function's class.
            function.pci_class, function.vendor = NVSWITCH
        self._names(node, function)
        return function

    def _names(self, node: Node, function: Function) -> None:
        """Names: RDMA devices first, as NCCL and topo -m know NICs by them."""
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
    """The values of an object's <info> children, by name, without empty ones."""
    return {info.get("name"): info.get("value") for info in node.all("info") if info.get("value")}


def _os_devices(node: Node) -> list[Node]:
    return [child for child in node.all("object") if child.get("type") == "OSDev"]
