"""Write a topology as NCCL's topology XML, for NCCL_TOPO_FILE."""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import quoteattr

from busbar.cpulist import mask, members
from busbar.errors import ProbeError
from topology.model.device import Device, Kind, LinkKind
from topology.model.infer import complete
from topology.model.map import Map
from topology.model.topology import Topology

_SPEEDS: dict[object, str] = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}

_CPU = {"arch": "arch", "vendor": "vendor", "familyid": "family", "modelid": "cpu_model"}


def dump(topology: Topology) -> str:
    """Return the XML. Raises ProbeError for a GPU without a bus id: NCCL finds GPUs by it."""
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
            said = {key: numa.get(n) or self.topology.get(n) for key, n in _CPU.items()}
            head = {"numaid": number, "affinity": mask(cpus) if cpus else None, **said}
            out += _element("cpu", head, 1, self._below(numa, 2))
        return [*out, "</system>"]

    def _homes(self) -> tuple[Device, ...]:
        """NUMA nodes, and any host that has devices outside of every NUMA node."""
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
        # NCCL looks up what a GPU or NIC lacks, but wants both attributes of a switch; it takes the
        # empty speed for gen3 and width 0 for 16, as in cloud providers' files.
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
        """A network card with all of its ports; a port without a bus id of its own has no turn."""
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
        rows = (_element("net", _net(*one, port), depth + 1) for port, one in enumerate(named, 1))
        return _element("nic", {}, depth, [line for row in rows for line in row])


def _numbers(homes: tuple[Device, ...]) -> list[int]:
    """NUMA node numbers; -1, NCCL's unknown, for the first that has none, then unused ones."""
    known = [home.index if home.kind is Kind.NUMA else None for home in homes]
    free = iter(n for n in range(-1, len(known)) if n not in known)
    return [next(free) if number is None else number for number in known]


def _net(nic: Device, name: str, port: int) -> Mapping[str, object]:
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
    """The lines of an element, as NCCL dumps them; one without ``inner`` is closed at once."""
    said = "".join(f" {k}={quoteattr(str(v))}" for k, v in attributes.items() if v is not None)
    head, indent = f"<{tag}{said}", "  " * depth
    if inner is None:
        return [f"{indent}{head}/>"]
    return [f"{indent}{head}>", *inner, f"{indent}</{tag}>"]
