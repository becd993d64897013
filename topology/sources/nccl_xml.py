"""NCCL's topology XML: written to NCCL_TOPO_DUMP_FILE, shipped by clouds, read as NCCL_TOPO_FILE.

A ``net`` becomes a NIC, because it is a device for RDMA and a column of ``nvidia-smi topo -m``; a
network card without a ``net`` is a NIC as well. ``dump`` writes the format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from busbar.cpulist import from_mask, mask, members
from busbar.errors import ProbeError
from topology.model.device import Device, Kind, LinkKind, Value, canonical
from topology.model.graph import complete
from topology.model.map import Map
from topology.model.rates import generation, network
from topology.model.topology import Topology
from topology.sources.draft import Draft, Function
from topology.sources.text import Node, tree

LINK_TAGS = ("nvlink", "xgmi", "c2c")
_SWITCH, _CPU = "0x068000", "0x068001"


def add_links(
    draft: Draft, gpus: Sequence[tuple[Node, str]], by_bus: Mapping[tuple[str, str], str]
) -> None:
    """Add the links that GPUs state: (<pci>, id); ``by_bus`` has devices by host and bus id.

    Two GPUs both state the links between them. If they differ, the lower number is used and the
    difference becomes a gap. Raises ProbeError, with the line, for an invalid count.
    """
    switches: dict[str, str] = {}
    counts: dict[tuple[str, str], int] = {}
    lines: dict[tuple[str, str], int] = {}
    for pci, id in gpus:
        # Ranks that share a GPU, and the parts of a split GPU, state the whole GPU's links.
        for gpu in pci.all("gpu")[:1]:
            for node, end, count in _stated(draft, gpu, id, by_bus, switches):
                # Like NCCL, add up the counts that several elements state for a pair.
                counts[id, end] = counts.get((id, end), 0) + count
                lines.setdefault((id, end), node.line)
            _chip_to_chip(draft, gpu, id)
    for (a, b), count in counts.items():
        back = counts.get((b, a))
        if back is not None and (b, a) < (a, b):
            continue  # this pair is handled in the other order
        if draft.devices[b].kind is Kind.GPU and back != count:
            why = f"line {lines[a, b]}: {a} states {count} to {b}, which states {back or 0}"
            draft.gap(f"{a} and {b}", "nvlink", why)
        least = count if back is None else min(count, back)
        draft.link(LinkKind.NVLINK, min(a, b), max(a, b), least)


def _stated(
    draft: Draft,
    gpu: Node,
    id: str,
    by_bus: Mapping[tuple[str, str], str],
    switches: dict[str, str],
) -> Iterator[tuple[Node, str, int]]:
    """Yield each <nvlink> or <xgmi> of a GPU with its other end; new switches are added.

    Hosts share the switches of their NVLink domain.
    """
    for node in gpu.all("nvlink", "xgmi"):
        count = node.number("count", draft.source)
        if count is None or not 0 < count <= 1024:
            text = node.get("count")
            raise ProbeError(draft.source, f"<{node.tag}> has count={text!r}", node.line)
        target, kind = node.get("target").lower(), node.get("tclass").lower()
        bus = canonical(target) or target
        end = by_bus.get((draft.host(id), bus)) or switches.get(bus)
        if kind.startswith(_CPU):
            end = _numa(draft, id)
        elif end is None and kind.startswith(_SWITCH):
            end = switches[bus] = _switch(draft, target)
        if end is None or end == id or end not in draft.devices:
            why = "the GPU itself" if end == id else "no device of this file"
            draft.gap(id, "nvlink", f"line {node.line}: target {target} is {why}")
        else:
            yield node, end, count


def _chip_to_chip(draft: Draft, gpu: Node, id: str) -> None:
    numa = _numa(draft, id)
    for node in gpu.all("c2c"):
        count, rate = node.number("count", draft.source), node.number("bw", draft.source)
        if numa is None or (count is not None and not 0 < count <= 1024):
            draft.gap(id, "c2c", f"line {node.line}: no CPU above the GPU, or no number of links")
        else:
            bandwidth = rate * 1e6 if rate else None
            draft.link(LinkKind.C2C, id, numa, count or 1, rate=bandwidth)


def _switch(draft: Draft, target: str) -> str:
    index = sum(1 for device in draft.devices.values() if device.kind is Kind.SWITCH)
    return draft.add(f"NVS{index}", Kind.SWITCH, index, busid=canonical(target))


def _numa(draft: Draft, id: str) -> str | None:
    """The NUMA node above a device, or None."""
    here = draft.devices[id].parent
    while here is not None and draft.devices[here].kind is not Kind.NUMA:
        here = draft.devices[here].parent
    return here


NAME = "nccl-xml"
UNKNOWN = "?"


def parse(text: str) -> Topology:
    """Parse the XML. Raises ProbeError, with the line, for XML that NCCL would not accept."""
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


#: The elements that are read; others become gaps.
_READ = {"system", "cpu", "pci", "gpu", "nic", "net", *LINK_TAGS}
_BRIDGES, _NETWORK = ("0x0604", "0x0600"), "0x02"
_GPU_CLASSES = ("0x03", "0x12")


class _Reader:
    def __init__(self) -> None:
        self.draft = Draft(NAME)
        self.gpus: list[tuple[Node, str, str]] = []
        self.screens: list[tuple[Node, str, str]] = []
        self.nets: list[tuple[Node | None, Node | None, str]] = []
        #: Devices by host and bus id, because hosts of an NVLink domain may have equal bus ids.
        self.by_bus: dict[tuple[str, str], str] = {}
        self.hosts: dict[str, str] = {}
        self.repeated = 0

    def read(self, root: Node) -> Topology:
        cpus = root.all("cpu")
        for cpu in cpus:
            self._cpu(cpu)
        if not self.draft.devices:
            raise ProbeError(NAME, "<system> has no <cpu>", root.line)
        self._screens()
        self._gpus()
        self._nics()
        gpus = [(pci, self.by_bus[self.draft.host(above), bus]) for pci, bus, above in self.gpus]
        add_links(self.draft, gpus, self.by_bus)
        tags = Counter(node.tag for node in root.walk())
        for tag in sorted(tags.keys() - _READ):
            self.draft.gap("elements", tag, f"{tags[tag]} of a kind that is not read")
        self.draft.count(Kind.NUMA, len(cpus))
        cards = sum(1 for _, net, _ in self.nets if net is None)
        self.draft.count(Kind.NIC, tags["net"] - self.repeated + cards)
        self.draft.count(
            Kind.GPU, tags["gpu"] + sum(1 for pci, *_ in self.gpus if not pci.all("gpu"))
        )
        return self.draft.build()

    def _cpu(self, cpu: Node) -> None:
        key = cpu.get("host_hash")
        host = self.hosts.setdefault(key, f"HOST{len(self.hosts)}" if self.hosts else "HOST")
        if host not in self.draft.devices:
            self.draft.add(host, Kind.HOST)
        numa = cpu.number("numaid", NAME)
        # The kernel knows no NUMA node here; an invented number would look like a real one.
        index = numa if numa is not None and numa >= 0 else None
        name, suffix = f"NUMA{UNKNOWN if index is None else index}", host.removeprefix("HOST")
        id = f"{name}@{host}" if suffix else name
        if index is None:
            count = sum(1 for known in self.draft.devices if known.startswith(id))
            id = f"{id}{count}" if count else id
        if id in self.draft.devices:
            raise ProbeError(NAME, f"NUMA node {numa} appears twice", cpu.line)
        family, model = cpu.number("familyid", NAME), cpu.number("modelid", NAME)
        self.draft.add(
            id,
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
        for child in node.all("pci"):
            self._pci(child, parent)
        for net in _nets(node):
            self._virtual(net, parent)

    def _virtual(self, net: Node, parent: str) -> None:
        """Add a net without a card; one below several CPUs belongs to their host."""
        for n, (pci, other, above) in enumerate(self.nets):
            if pci is None and other is not None and other.attributes == net.attributes:
                host = self.draft.devices[parent].parent or parent
                if self.draft.devices[above].parent in (host, None) or above == host:
                    self.nets[n] = (None, other, host)
                    self.repeated += 1
                    return
        self.nets.append((None, net, parent))

    def _pci(self, pci: Node, parent: str) -> None:
        busid = canonical(pci.get("busid"))
        if busid is None:
            raise ProbeError(NAME, f"<pci> has busid={pci.get('busid')!r}", pci.line)
        kind, nets = pci.get("class").lower(), _nets(pci)
        gpu = bool(pci.all("gpu")) or (not nets and kind.startswith(_GPU_CLASSES))
        card = kind.startswith(_NETWORK) or bool(nets and not gpu and not pci.all("pci"))
        inner = bool(pci.all("pci")) or (kind.startswith(_BRIDGES) and not card and not gpu)
        if inner:
            parent = self._bridge(pci, busid, parent)
            for child in pci.all("pci"):
                self._pci(child, parent)
        if gpu:
            self._gpu(pci, busid, parent)
        if card:
            self.nets += [(pci, net, parent) for net in nets] or [(pci, None, parent)]
        else:
            for net in nets:
                self._virtual(net, parent)
        if not (gpu or card or inner or nets):
            why = "is neither GPU, NIC nor bridge"
            if not kind:
                why = "NCCL asks the machine what it is; the file does not say"
            self.draft.gap(busid, "class", f"{kind} {why}".strip())

    def _gpu(self, pci: Node, busid: str, parent: str) -> None:
        host = self.draft.host(parent)
        others = (*self.gpus, *self.screens)
        if any(busid == other and host == self.draft.host(above) for _, other, above in others):
            raise ProbeError(NAME, f"{busid} is the bus id of two GPUs", pci.line)
        vendor = pci.get("vendor").lower()
        function = Function(busid, "", (), pci.get("class").lower(), vendor)
        if pci.all("gpu") or (function.kind is Kind.GPU):
            self.gpus.append((pci, busid, parent))
        elif vendor:
            self.draft.gap(busid, "class", f"a display controller of vendor {vendor}, not a GPU")
        else:
            self.screens.append((pci, busid, parent))

    def _screens(self) -> None:
        """Sort display controllers of unknown vendor: GPUs, unless the file has certain ones.

        Cloud providers' files state only a class. A server's management chip has a display (0300),
        beside GPUs that have none (0302), or beside GPUs that NCCL has examined.
        """
        compute = [one for one in self.screens if not one[0].get("class").startswith("0x0300")]
        certain = self.gpus or compute
        for one in self.screens:
            if one in compute or not certain:
                self.gpus.append(one)
            else:
                self.draft.gap(one[1], "class", "a display controller of unknown make beside GPUs")

    def _bridge(self, pci: Node, busid: str, parent: str) -> str:
        """Add a bridge. As in NCCL, several bridges may have the same bus id."""
        host = self.draft.host(parent)
        id = f"PCI:{busid}" if host == "HOST" else f"PCI:{busid}@{host}"
        first = id not in self.draft.devices
        if first:
            self.by_bus.setdefault((host, busid), id)
        else:
            count = sum(1 for d in self.draft.devices if d.startswith(f"{id}#"))
            id = f"{id}#{count + 2}"
            self.draft.gap(
                id, "busid", f"line {pci.line}: {busid} is another bridge's bus id as well"
            )
        self.draft.add(id, Kind.BRIDGE, busid=busid if first else None, parent=parent)
        self.draft.state(id, **_pcie(pci))
        return id

    def _gpus(self) -> None:
        """Index GPUs by NCCL's dev if every GPU has a different one, else in order of bus ids.

        GPUs of several hosts are numbered host by host.
        """
        devs = [
            gpu[0].number("dev", NAME) if (gpu := pci.all("gpu")) else None
            for pci, _, _ in self.gpus
        ]
        hosts = [self.draft.host(parent) for *_, parent in self.gpus]
        place, several = list(self.hosts.values()).index, len(self.hosts) > 1
        unique = None not in devs and len(set(zip(hosts, devs, strict=True))) == len(devs)
        by_dev = unique and several
        order = sorted(
            range(len(devs)),
            key=lambda n: (place(hosts[n]), (devs[n] or 0) if by_dev else 0, self.gpus[n][1]),
        )
        if not unique and any(dev is not None for dev in devs):
            self.draft.gap("GPUs", "dev", f"not a number for each: {devs}; in order of bus ids")
        for position, at in enumerate(order):
            pci, busid, parent = self.gpus[at]
            dev = devs[at] if unique else None
            index = position if dev is None or several else dev
            id = self.draft.add(f"GPU{index}", Kind.GPU, index, busid=busid, parent=parent)
            for inner in pci.all("gpu")[:1]:
                self.draft.state(id, **_gpu(inner))
            self.draft.state(id, **_pcie(pci))
            self.by_bus[hosts[at], busid] = id

    def _nics(self) -> None:
        """Number NICs by NCCL's dev if these are all different; NICs without one come last."""
        devs = [net.number("dev", NAME) if net else None for _, net, _ in self.nets]
        numbers = [dev for dev in devs if dev is not None and dev >= 0]
        if len(set(numbers)) < len(numbers):
            self.draft.gap("NICs", "dev", f"not a number for each: {devs}; in order of the file")
            numbers, devs = [], [None] * len(devs)
        free = iter(n for n in range(len(numbers) + len(devs)) if n not in set(numbers))
        cards: set[tuple[str, str]] = set()
        for (pci, net, parent), dev in zip(self.nets, devs, strict=True):
            index = dev if dev is not None and dev >= 0 else next(free)
            busid = canonical(pci.get("busid")) if pci else None
            # NCCL drops the function from a card's bus id, so only one of its ports can have it.
            where = (self.draft.host(parent), busid or "")
            second = busid is not None and where in cards
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
                cards.add(where)
                self.by_bus[where] = id


def _nets(node: Node) -> list[Node]:
    return [net for nic in node.all("nic") for net in nic.all("net")]


def _gpu(gpu: Node) -> dict[str, Value | None]:
    """A GPU's facts. In RCCL's files ``sm`` is the number of compute units."""
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
    """NCCL states the maximum of link and port, so these facts are maxima."""
    width = pci.number("link_width", NAME)
    return {
        "pci_class": pci.get("class") or None,
        "vendor": pci.get("vendor") or None,
        "pci_device": pci.get("device") or None,
        "pcie_gen_max": generation(pci.get("link_speed")),
        "pcie_width_max": width if width and width > 0 else None,
    }


_SPEEDS: dict[object, str] = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}

_CPU_NAMES = {"arch": "arch", "vendor": "vendor", "familyid": "family", "modelid": "cpu_model"}


def dump(topology: Topology) -> str:
    """The XML of a topology. Raises ProbeError for a GPU without a bus id, which NCCL needs."""
    lost = [gpu.id for gpu in topology.gpus if gpu.busid is None]
    if lost:
        reason = (
            f"{', '.join(lost)} without bus id; add a source that has them, as nvidia-smi -q -x"
        )
        raise ProbeError("nccl-xml", reason)
    return "\n".join(_Writer(complete(topology)).system()) + "\n"


class _Writer:
    def __init__(self, topology: Map) -> None:
        self.topology = topology
        self.invented = 0

    def system(self) -> list[str]:
        out = ['<system version="1">']
        homes = self._homes()
        for numa, number in zip(homes, _numbers(homes), strict=True):
            cpus = members(str(numa.get("cpus") or self._affinity(numa) or ""))
            facts = {key: numa.get(n) or self.topology.get(n) for key, n in _CPU_NAMES.items()}
            head = {"numaid": number, "affinity": mask(cpus) if cpus else None, **facts}
            out += _element("cpu", head, 1, self._below(numa, 2))
        return [*out, "</system>"]

    def _homes(self) -> tuple[Device, ...]:
        """Every NUMA node, and every host with devices that are in no NUMA node."""
        orphans = {
            device.id
            for end in self.topology.endpoints
            if self.topology.ancestor(end.id, Kind.NUMA) is None
            for device in self.topology.ancestors(end.id)
            if device.kind is Kind.HOST
        }
        return (*self.topology.of(Kind.NUMA), *(self.topology.device(id) for id in sorted(orphans)))

    def _affinity(self, numa: Device) -> object:
        inside = (g for g in self.topology.gpus if numa in tuple(self.topology.ancestors(g.id)))
        return next((value for g in inside if (value := g.get("cpu_affinity"))), None)

    def _below(self, parent: Device, depth: int) -> list[str]:
        out: list[str] = []
        for device in self.topology.children(parent.id):
            if device.kind in (Kind.ROOT, Kind.PACKAGE):
                out += self._below(device, depth)
            elif device.kind is Kind.BRIDGE:
                inner = self._below(device, depth + 1)
                if inner:
                    out += _element("pci", self._pci(device, "0x060400"), depth, inner)
            elif device.kind is Kind.GPU:
                gpu = self._gpu(device, depth + 1)
                out += _element("pci", self._pci(device, "0x030200"), depth, gpu)
            elif device.kind is Kind.NIC:
                out += self._nic(device, depth)
        return out

    def _pci(self, device: Device, kind: str) -> Mapping[str, object]:
        busid = device.busid
        if busid is None:
            # Cloud providers' files name switches that the guest cannot see in the same way.
            self.invented += 1
            busid = f"ffff:ff:{self.invented // 8:02x}.{self.invented % 8}"
        gen = device.get("pcie_gen_max") or device.get("pcie_gen")
        width = device.get("pcie_width_max") or device.get("pcie_width")
        vendor = str(device.get("vendor"))
        # NCCL looks up missing attributes of a GPU or NIC, but needs both of a switch. It reads an
        # empty speed as gen3 and width 0 as 16, as in cloud providers' files.
        speed = "" if device.kind is Kind.BRIDGE else None
        lanes = 0 if device.kind is Kind.BRIDGE else None
        return {
            "busid": busid,
            "class": device.get("pci_class") or kind,
            "vendor": vendor if vendor.startswith("0x") else None,
            "device": device.get("pci_device"),
            "link_speed": f"{_SPEEDS[gen]} GT/s PCIe" if gen in _SPEEDS else speed,
            "link_width": width or lanes,
        }

    def _gpu(self, gpu: Device, depth: int) -> list[str]:
        out, gcn = list[str](), gpu.get("gcn")
        for link in self.topology.links:
            if gpu.id not in (link.a, link.b):
                continue
            other = self.topology.device(link.b if link.a == gpu.id else link.a)
            if link.kind is LinkKind.C2C:
                row: dict[str, object] = {"bw": int((link.rate or 0) / 1e6), "count": link.count}
                out += _element("c2c", row, depth + 1)
            elif other.kind in (Kind.GPU, Kind.SWITCH):
                kind = other.get("pci_class") or "0x030200"
                kind = kind if other.kind is Kind.GPU else "0x068000"
                target = other.busid or f"ffff:fe:{other.index or 0:02x}.0"
                row = {"target": target, "count": link.count, "tclass": kind}
                out += _element("xgmi" if gcn else "nvlink", row, depth + 1)
        units = gpu.get("multiprocessors" if gcn else "sm")
        head = {"dev": gpu.index, "sm": units, "gcn": gcn, "gdr": _flag(gpu.get("gdr"))}
        return _element("gpu", head, depth, out)

    def _nic(self, nic: Device, depth: int) -> list[str]:
        """A network card with all of its ports; nothing for a port that belongs to another card."""
        if nic.get("card") is not None:
            return []
        if nic.busid is None:
            return self._nets([nic], depth)
        ports = [p for p in self.topology.nics if p is nic or p.get("card") == nic.busid]
        return _element("pci", self._pci(nic, "0x020000"), depth, self._nets(ports, depth + 1))

    def _nets(self, nics: list[Device], depth: int) -> list[str]:
        named = [(nic, name) for nic in nics if (name := nic.net_name)]
        if not named:
            return []
        rows = (
            _element("net", _written_net(*one, port), depth + 1)
            for port, one in enumerate(named, 1)
        )
        return _element("nic", {}, depth, [line for row in rows for line in row])


def _numbers(homes: tuple[Device, ...]) -> list[int]:
    """NUMA node numbers; the first missing one is -1 (NCCL's "unknown"), others unused numbers."""
    known = [home.index if home.kind is Kind.NUMA else None for home in homes]
    free = iter(n for n in range(-1, len(known)) if n not in known)
    return [next(free) if number is None else number for number in known]


def _written_net(nic: Device, name: str, port: int) -> Mapping[str, object]:
    rate, guid = nic.number("net_rate"), str(nic.get("guid"))
    return {
        "name": name,
        "dev": nic.index,
        "speed": round(rate * 8 / 1e6) if rate else None,
        "port": port,
        "guid": guid if guid.startswith("0x") else None,
        "gdr": _flag(nic.get("gdr")),
    }


def _flag(value: object) -> int | None:
    return None if value is None else int(bool(value))


def _element(
    tag: str, attributes: Mapping[str, object], depth: int, inner: list[str] | None = None
) -> list[str]:
    """The lines of an element, as NCCL dumps them; without ``inner`` the element is empty."""
    from xml.sax.saxutils import quoteattr  # loads urllib, which takes as long as numpy

    text = "".join(f" {k}={quoteattr(str(v))}" for k, v in attributes.items() if v is not None)
    head, indent = f"<{tag}{text}", "  " * depth
    if inner is None:
        return [f"{indent}{head}/>"]
    return [f"{indent}{head}>", *inner, f"{indent}</{tag}>"]
