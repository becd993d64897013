"""A topology under construction, so that every source states facts in the same few words.

The kernel and hwloc have a tree of PCIe *ports*, the model has one of *switches* (`place`). Below a
root port, ports alternate: a switch's upstream port, then its downstream ports, then the next
switch's upstream port. So of the bridges from a root complex to a device, counted from the root
port 0, the odd ones are switches and the even ones the ports that something plugs into.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from topology.model.device import COUNT, Fact, Gap, Value, canonical, order
from topology.model.topology import Device, Kind, Link, LinkKind, PairFact, Topology


@dataclass
class Draft:
    """The statements of one source so far; ``build`` freezes them. None is never stated."""

    source: str
    devices: dict[str, Device] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    pairs: list[PairFact] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    counts: dict[Kind, int] = field(default_factory=dict)

    def add(
        self,
        id: str,
        kind: Kind,
        index: int | None = None,
        *,
        name: str = "",
        busid: str | None = None,
        uuid: str | None = None,
        parent: str | None = None,
        **facts: Value | None,
    ) -> str:
        """Add a device with its facts and return its id."""
        self.devices[id] = Device(id, kind, index, name, busid, uuid, parent)
        self.state(id, **facts)
        return id

    def gpu(self, index: int, name: str = "", **known: str | None) -> str:
        """The id of the GPU with this index. The GPU is added at its first mention."""
        id = f"GPU{index}"
        if id not in self.devices:
            busid, uuid = known.get("busid"), known.get("uuid")
            self.add(id, Kind.GPU, index, name=name, busid=busid, uuid=uuid, model=name or None)
        return id

    def state(self, id: str, **facts: Value | None) -> None:
        """State facts about a device."""
        device = self.devices[id]
        self.devices[id] = replace(device, facts=(*device.facts, *self._statements(facts)))

    def host(self, id: str) -> str:
        """The id of the host above a device, or of its topmost ancestor if there is no host."""
        while (device := self.devices[id]).parent is not None:
            id = device.parent
        return id

    def machine(self, **facts: Value | None) -> None:
        """State facts about the machine as a whole."""
        self.facts += self._statements(facts)

    def pair(self, a: str, b: str, **facts: Value | None) -> None:
        """State facts about two devices, from a to b."""
        self.pairs += [PairFact(a, b, fact) for fact in self._statements(facts)]

    def _statements(self, facts: Mapping[str, Value | None]) -> list[Fact]:
        return [
            Fact(name, value, self.source) for name, value in facts.items() if value is not None
        ]

    def link(
        self,
        kind: LinkKind,
        a: str,
        b: str,
        count: int = 1,
        *,
        version: int | None = None,
        rate: float | None = None,
    ) -> None:
        """Add a link."""
        self.links.append(Link(kind, a, b, self.source, count, version, rate))

    def gap(self, subject: str, call: str, reason: str) -> None:
        """Record something that the source could not state."""
        self.gaps.append(Gap(self.source, subject, call, reason))

    def count(self, kind: Kind, number: int) -> None:
        """State how many devices of a kind the text has, counted independently of their parsing."""
        self.counts[kind] = number

    def build(self) -> Topology:
        """Freeze the statements; a difference from the stated counts becomes a gap.

        Raises ProbeError if devices, links and pairs are inconsistent.
        """
        for kind, number in self.counts.items():
            count = sum(1 for device in self.devices.values() if device.kind is kind)
            if count != number:
                self.gap(kind.value, COUNT, f"{number} in the text, {count} in the map")
        return Topology(
            tuple(self.devices.values()),
            tuple(self.links),
            tuple(self.pairs),
            tuple(self.facts),
            tuple(self.gaps),
            (self.source,),
        )


#: PCI vendors whose display and accelerator functions are GPUs to us: NVIDIA, AMD, Intel.
_NVIDIA, _AMD, _INTEL = "0x10de", "0x1002", "0x8086"
#: Class and vendor of an NVSwitch.
NVSWITCH = ("0x068000", _NVIDIA)


@dataclass
class Function:
    """A PCI function: the bridges above it, from the root port down, and its facts."""

    busid: str
    root: str
    bridges: tuple[str, ...]
    pci_class: str = ""
    vendor: str = ""
    facts: dict[str, Value | None] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind | None:
        """GPU, NIC or SWITCH (an NVSwitch); None for everything else.

        A display controller (0300) of NVIDIA or AMD is a GPU; Intel's is graphics inside the CPU,
        unless it has no display (0380). Display controllers of server management chips are no GPUs.
        A function with a network interface is a NIC, even an InfiniBand adapter of class 0c06.
        """
        code = self.pci_class.removeprefix("0x")[:4]
        if code.startswith("02") or self.names:
            return Kind.NIC
        if self.vendor == _NVIDIA and code == "0680":
            return Kind.SWITCH
        if self.vendor == _NVIDIA and code in ("0300", "0302"):
            return Kind.GPU
        if self.vendor == _AMD and code in ("0300", "0302", "0380", "1200"):
            return Kind.GPU
        return Kind.GPU if self.vendor == _INTEL and code in ("0302", "0380", "1200") else None


def place(
    draft: Draft, functions: Mapping[str, Function], homes: Mapping[str, str]
) -> dict[str, str]:
    """Add root complexes, switches, GPUs, NICs and NVSwitches; returns device ids by bus id.

    ``homes``: the NUMA node (or host) of each root complex.
    """
    ids: dict[str, str] = {}
    counts: dict[Kind, int] = {}
    for busid in sorted(functions, key=order):
        function = functions[busid]
        kind = function.kind
        if kind is None:
            continue
        stem = {Kind.GPU: "GPU", Kind.NIC: "NIC", Kind.SWITCH: "NVS"}[kind]
        number = counts.get(kind, 0)
        counts[kind] = number + 1
        name = function.names[0] if function.names else ""
        parent = _switches(draft, functions, function, homes)
        ids[busid] = draft.add(
            f"{stem}{number}", kind, number, name=name, busid=busid, parent=parent
        )
        draft.state(
            ids[busid], pci_class=function.pci_class or None, vendor=function.vendor or None
        )
        draft.state(ids[busid], **_link_facts(functions, function))
    return ids


def _switches(
    draft: Draft, functions: Mapping[str, Function], function: Function, homes: Mapping[str, str]
) -> str:
    parent = f"ROOT:{function.root}"
    if parent not in draft.devices:
        draft.add(parent, Kind.ROOT, parent=homes[function.root], name=function.root)
    for busid in function.bridges[1::2]:
        id = f"PCI:{busid}"
        if id not in draft.devices:
            draft.add(id, Kind.BRIDGE, busid=busid, parent=parent)
            upstream = functions.get(busid)
            if upstream is not None:
                draft.state(id, vendor=upstream.vendor or None)
                draft.state(id, **_link_facts(functions, upstream))
        parent = id
    return parent


def _link_facts(functions: Mapping[str, Function], function: Function) -> dict[str, Value | None]:
    """A function's facts, combined with those of the port above it.

    The kernel states the device's own maximum; the maximum of the link is the lower of the device's
    and the port's. Devices inside the root complex have no port.
    """
    facts = dict(function.facts)
    port = functions.get(function.bridges[-1]) if function.bridges else None
    if port is None:
        return facts
    own, other = facts.get("pcie_gen_max"), port.facts.get("pcie_gen_max")
    if isinstance(own, int) and isinstance(other, int):
        facts |= {"pcie_gen_device_max": own, "pcie_gen_max": min(own, other)}
    return facts | {
        "port_busid": port.busid,
        "port_gen_max": other,
        "port_width_max": port.facts.get("pcie_width_max"),
        "port_acs": port.facts.get("acs"),
    }


def root_of(text: str) -> str | None:
    """``0000:00`` of ``pci0000:00``, or None."""
    head = text.removeprefix("pci")
    busid = canonical(f"{head}:00") if text.startswith("pci") else None
    return None if busid is None else busid.rpartition(":")[0]
