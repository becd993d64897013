"""NCCL's topology XML: what NCCL_TOPO_DUMP_FILE writes, cloud providers ship and NCCL_TOPO_FILE reads.

A ``net`` is a NIC here, as it is a device for RDMA and a column of ``nvidia-smi topo -m``; a network
card without one is a NIC as well. ``topology.sources.nccl_xml_out`` writes the format.
"""

from __future__ import annotations

from topology.busid import canonical
from topology.errors import ProbeError
from topology.facts import Value
from topology.model import Kind, LinkKind, Topology
from topology.rates import generation, network
from topology.sources.cpulist import from_mask
from topology.sources.draft import Draft
from topology.sources.xml_text import Node, tree

NAME = "nccl-xml"
SWITCH_CLASS, CPU_CLASS = "0x068000", "0x068001"


def parse(text: str) -> Topology:
    """Read the XML; ProbeError, with the line, for what NCCL would not accept either."""
    root = tree(NAME, text)
    if root.tag == "graphs":
        reason = (
            "this is a graph dump (NCCL_GRAPH_DUMP_FILE): the rings and trees NCCL chose, not the "
            "machine; dump the topology with NCCL_TOPO_DUMP_FILE"
        )
        raise ProbeError(NAME, reason, root.line)
    if root.tag != "system":
        raise ProbeError(NAME, f"the root is <{root.tag}>, not <system>", root.line)
    if root.get("version", "1") not in ("1", "2"):
        raise ProbeError(NAME, f"version {root.get('version')!r} is unknown here", root.line)
    return _Reader().read(root)


class _Reader:
    def __init__(self) -> None:
        self.draft = Draft(NAME)
        self.gpus: list[tuple[Node, str, str]] = []
        self.nets: list[tuple[Node | None, Node | None, str]] = []
        self.by_bus: dict[str, str] = {}
        self.hosts: dict[str, str] = {}
        self.numas: set[int | None] = set()

    def read(self, root: Node) -> Topology:
        self.numas = {cpu.number("numaid", NAME) for cpu in root.all("cpu")}
        for cpu in root.all("cpu"):
            self._cpu(cpu)
        if not (self.gpus or self.nets or self.draft.devices):
            raise ProbeError(NAME, "<system> has no <cpu>", root.line)
        self._gpus()
        self._nics()
        for node, busid, _ in self.gpus:
            for gpu in node.all("gpu"):
                self._nvlinks(gpu, self.by_bus[busid])
        return self.draft.build()

    def _cpu(self, cpu: Node) -> None:
        key = cpu.get("host_hash")
        host = self.hosts.setdefault(key, f"HOST{len(self.hosts)}" if self.hosts else "HOST")
        if host not in self.draft.devices:
            self.draft.add(host, Kind.HOST)
        numa = cpu.number("numaid", NAME)
        index = numa
        if index is None or index < 0:
            # The kernel knows no NUMA node; the number is ours, and nobody else's.
            index = next(n for n in range(len(self.numas) + 1) if n not in self.numas)
            self.numas.add(index)
        suffix = "" if host == "HOST" else f"@{host}"
        if f"NUMA{index}{suffix}" in self.draft.devices:
            raise ProbeError(NAME, f"NUMA node {numa} appears twice", cpu.line)
        family, model = cpu.number("familyid", NAME), cpu.number("modelid", NAME)
        id = self.draft.add(
            f"NUMA{index}{suffix}",
            Kind.NUMA,
            index,
            parent=host,
            arch=cpu.get("arch") or None,
            vendor=cpu.get("vendor") or None,
            family=family,
            cpu_model=model,
            cpus=from_mask(cpu.get("affinity")) or None,
        )
        self._below(cpu, id)

    def _below(self, node: Node, parent: str) -> None:
        for child in node.children:
            if child.tag == "pci":
                self._pci(child, parent)
            elif child.tag == "nic":
                for net in child.all("net"):
                    self._virtual(net, parent)

    def _virtual(self, net: Node, parent: str) -> None:
        """A net without a card; one that stands below several CPUs belongs to none of them."""
        for n, (pci, other, above) in enumerate(self.nets):
            if pci is None and other is not None and other.attributes == net.attributes:
                host = self.draft.devices[parent].parent or parent
                if self.draft.devices[above].parent in (host, None) or above == host:
                    self.nets[n] = (None, other, host)
                    return
        self.nets.append((None, net, parent))

    def _pci(self, pci: Node, parent: str) -> None:
        busid = canonical(pci.get("busid"))
        if busid is None:
            raise ProbeError(NAME, f"<pci> has busid={pci.get('busid')!r}", pci.line)
        kind = pci.get("class").lower()
        if pci.all("gpu") or kind.startswith(("0x03", "0x12")):
            if any(busid == other for _, other, _ in self.gpus):
                raise ProbeError(NAME, f"{busid} is the bus id of two GPUs", pci.line)
            self.by_bus[busid] = f"PCI:{busid}"
            self.gpus.append((pci, busid, parent))
        elif pci.all("nic") or kind.startswith("0x02"):
            nets = [net for nic in pci.all("nic") for net in nic.all("net")]
            self.nets += [(pci, net, parent) for net in nets] or [(pci, None, parent)]
        elif kind.startswith(("0x0604", "0x0600")) or pci.all("pci"):
            self._bridge(pci, busid, parent)
        else:
            why = "is neither GPU, NIC nor bridge"
            if not kind:
                why = "NCCL asks the machine what it is; the file does not say"
            self.draft.gap(busid, "class", f"{kind} {why}".strip())

    def _bridge(self, pci: Node, busid: str, parent: str) -> None:
        """Like NCCL, take a bus id that some models give to several bridges for as many bridges."""
        id = f"PCI:{busid}"
        first = id not in self.draft.devices
        if first:
            self.by_bus.setdefault(busid, id)
        else:
            count = sum(1 for d in self.draft.devices if d.startswith(f"{id}#"))
            id = f"{id}#{count + 2}"
            self.draft.gap(
                id, "busid", f"line {pci.line}: {busid} is another bridge's bus id as well"
            )
        self.draft.add(id, Kind.BRIDGE, busid=busid if first else None, parent=parent)
        self.draft.state(id, **_pcie(pci))
        self._below(pci, id)

    def _gpus(self) -> None:
        """Index GPUs by NCCL's dev where every GPU has one of its own, else in order of bus ids."""
        devs = [
            gpu[0].number("dev", NAME) if (gpu := pci.all("gpu")) else None
            for pci, _, _ in self.gpus
        ]
        order = sorted(range(len(devs)), key=lambda n: self.gpus[n][1])
        given = None not in devs and len(set(devs)) == len(devs)
        for position, at in enumerate(order):
            pci, busid, parent = self.gpus[at]
            dev = devs[at] if given else None
            index = position if dev is None else dev
            id = self.draft.add(f"GPU{index}", Kind.GPU, index, busid=busid, parent=parent)
            for found in pci.all("gpu")[:1]:
                self.draft.state(id, **_gpu(found))
            self.draft.state(id, **_pcie(pci))
            self.by_bus[busid] = id

    def _nics(self) -> None:
        cards: set[str] = set()
        for index, (pci, net, parent) in enumerate(self.nets):
            busid = canonical(pci.get("busid")) if pci else None
            # NCCL drops the function from a card's bus id, so only one of its ports can have it.
            second = busid in cards
            id = self.draft.add(
                f"NIC{index}",
                Kind.NIC,
                index,
                name=net.get("name") if net else "",
                busid=None if second else busid,
                parent=parent,
                card=busid if second else None,
            )
            if net:
                self.draft.state(id, **_net(net))
            if pci:
                self.draft.state(id, **_pcie(pci))
            if busid and not second:
                cards.add(busid)
                self.by_bus[busid] = id

    def _nvlinks(self, gpu: Node, id: str) -> None:
        numa = next((d for d in self._above(id) if d.startswith("NUMA")), None)
        for node in gpu.all("nvlink", "xgmi"):
            count = node.number("count", NAME)
            if count is None or not 0 < count <= 1024:
                raise ProbeError(NAME, f"<{node.tag}> has count={node.get('count')!r}", node.line)
            target, kind = node.get("target").lower(), node.get("tclass").lower()
            end = self.by_bus.get(canonical(target) or target)
            if kind.startswith(CPU_CLASS):
                end = numa
            elif end is None and kind.startswith(SWITCH_CLASS):
                end = self._switch(target)
            if end is None or end == id or end not in self.draft.devices:
                why = "the GPU itself" if end == id else "no device of this file"
                self.draft.gap(id, "nvlink", f"line {node.line}: target {target} is {why}")
            elif not any({link.a, link.b} == {id, end} for link in self.draft.links):
                self.draft.link(LinkKind.NVLINK, min(id, end), max(id, end), count)
        for node in gpu.all("c2c"):
            count, rate = node.number("count", NAME) or 1, node.number("bw", NAME)
            if numa:
                self.draft.link(LinkKind.C2C, id, numa, count, rate=rate * 1e6 if rate else None)

    def _switch(self, target: str) -> str:
        index = sum(1 for d in self.draft.devices.values() if d.kind is Kind.SWITCH)
        self.by_bus[canonical(target) or target] = f"NVS{index}"
        return self.draft.add(f"NVS{index}", Kind.SWITCH, index, busid=canonical(target))

    def _above(self, id: str) -> list[str]:
        found, here = [], self.draft.devices[id].parent
        while here is not None:
            found.append(here)
            here = self.draft.devices[here].parent
        return found


def _gpu(gpu: Node) -> dict[str, Value | None]:
    """In RCCL's files ``sm`` is the number of compute units, beside the architecture."""
    number, gcn = gpu.number("sm", NAME), gpu.get("gcn")
    return {
        "gcn": gcn or None,
        "multiprocessors" if gcn else "sm": number,
        "gdr": gpu.get("gdr") == "1" if gpu.get("gdr") else None,
    }


def _net(net: Node) -> dict[str, Value | None]:
    speed = net.number("speed", NAME)
    return {
        "net_names": (net.get("name"),) if net.get("name") else None,
        "net_rate": network(speed) if speed and speed > 0 else None,
        "guid": net.get("guid") or None,
        "gdr": net.get("gdr") == "1" if net.get("gdr") else None,
    }


def _pcie(pci: Node) -> dict[str, Value | None]:
    """NCCL reads the most that link and port can do, so these are the maximum."""
    width = pci.number("link_width", NAME)
    return {
        "pci_class": pci.get("class") or None,
        "vendor": pci.get("vendor") or None,
        "pci_device": pci.get("device") or None,
        "pcie_gen_max": generation(pci.get("link_speed")),
        "pcie_width_max": width if width and width > 0 else None,
    }
