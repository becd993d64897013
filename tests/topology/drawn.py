"""One machine drawn at random, and its text as NCCL writes it; ``drawn_hwloc`` has hwloc's.

What a text should be read as is worked out here from the machine alone, by its paths: nothing of
``topology.sources`` is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from hypothesis import strategies as st

GPU, NIC, SCREEN = "gpu", "nic", "screen"
#: PCI class, vendor and device.
CLASSES = {GPU: ("0302", "10de:20b0"), NIC: ("0207", "15b3:101b"), SCREEN: ("0300", "1a03:2000")}


@dataclass
class Card:
    """An endpoint of the PCI tree; ``functions`` are its bus ids, two for a NIC with two ports."""

    kind: str
    functions: list[str]
    names: list[str]


@dataclass
class Switch:
    """A PCIe switch: bus ids of its upstream and downstream ports, and what is below them."""

    busid: str
    ports: list[str]
    below: list[Card | Switch]


@dataclass
class Root:
    """A root complex ``dddd:bb``; a port is None where a card stands on the root's own bus."""

    name: str
    ports: list[str | None]
    below: list[Card | Switch]


@dataclass
class Numa:
    """A NUMA node with its cores, each the list of its CPUs, and the root complexes near it."""

    index: int
    cores: list[list[int]]
    roots: list[Root]


@dataclass
class Machine:
    """Packages of NUMA nodes; memory without CPUs (``far``); NVLinks of a version between GPUs."""

    packages: list[list[Numa]]
    far: int
    nvlinks: dict[tuple[str, str], int]
    version: int
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Note the way down to each function: package, NUMA node, root complex, switches."""
        for package, numas in enumerate(self.packages):
            for numa in numas:
                for root in numa.roots:
                    start = (f"P{package}", f"N{numa.index}", root.name)
                    for item in root.below:
                        self._note(item, start)

    def _note(self, item: Card | Switch, above: tuple[str, ...]) -> None:
        if isinstance(item, Switch):
            for below in item.below:
                self._note(below, (*above, item.busid))
        elif item.kind != SCREEN:
            self.paths.update(dict.fromkeys(item.functions, above))

    @property
    def numas(self) -> list[Numa]:
        """All NUMA nodes that have CPUs."""
        return [numa for package in self.packages for numa in package]

    def cards(self, kind: str) -> list[Card]:
        """The cards of a kind, in the order of bus ids."""
        found = [card for numa in self.numas for root in numa.roots for card in _cards(root.below)]
        return sorted((c for c in found if c.kind == kind), key=lambda card: card.functions)

    def level(self, a: str, b: str) -> str:
        """What ``topo -m`` says of two functions, by the lengths of their common way."""
        first, second = self.paths[a], self.paths[b]
        same = next(
            (n for n, (x, y) in enumerate(zip(first, second, strict=False)) if x != y),
            min(len(first), len(second)),
        )
        if a[:-1] == b[:-1] or (same > 3 and len(first) == len(second) == same):
            return "PIX"
        return "SYS" if same < 2 else ("NODE", "PHB", "PXB")[min(same - 2, 2)]

    def cell(self, a: str, b: str) -> str:
        """The cell of the matrix: NVLinks before levels."""
        count = self.nvlinks.get((a, b)) or self.nvlinks.get((b, a))
        return f"NV{count}" if count else self.level(a, b)


def _cards(items: list[Card | Switch]) -> Iterator[Card]:
    for item in items:
        if isinstance(item, Switch):
            yield from _cards(item.below)
        else:
            yield item


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Draw a machine of 1 to 3 packages with up to 3 NUMA nodes each, at least one card."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    buses = iter(draw(st.permutations(range(1, 250))))
    domains = st.sampled_from(["0000", "0000", "0003", "10000"])
    cpu, names = iter(range(10_000)), iter(range(10_000))

    def bus() -> str:
        return f"{draw(domains)}:{next(buses):02x}"

    def item(depth: int) -> Card | Switch:
        kind = draw(st.sampled_from([GPU, GPU, NIC, SCREEN, "switch", "switch"][: 6 - depth]))
        if kind != "switch":
            card = f"{bus()}:00"
            ports = draw(st.integers(1, 2)) if kind == NIC else 1
            functions = [f"{card}.{port}" for port in range(ports)]
            return Card(kind, functions, [f"mlx5_{next(names)}" for _ in functions if kind == NIC])
        inner, size = bus(), draw(st.integers(1, 3))
        below = [item(depth + 1) for _ in range(size)]
        return Switch(f"{bus()}:00.0", [f"{inner}:{n:02x}.0" for n in range(size)], below)

    def root() -> Root:
        name, below = bus(), [item(0) for _ in range(draw(st.integers(1, 3)))]
        own = [isinstance(b, Card) and draw(st.booleans()) for b in below]
        for place, (card, here) in enumerate(zip(below, own, strict=True)):
            if here and isinstance(card, Card):
                slots = range(len(card.functions))
                card.functions = [f"{name}:{place + 8:02x}.{slot}" for slot in slots]
        ports = [None if here else f"{name}:{n:02x}.0" for n, here in enumerate(own)]
        return Root(name, ports, below)

    numbers = iter(draw(st.permutations(range(sum(counts)))))
    packages = [
        [
            Numa(
                next(numbers),
                [[next(cpu) for _ in range(draw(st.integers(1,
                2)))] for _ in range(draw(st.integers(1, 3)))],
                [root() for _ in range(draw(st.integers(0, 2)))],
            )
            for _ in range(count)
        ]
        for count in counts
    ]  # fmt: skip
    machine = Machine(packages, draw(st.integers(0, 2)), {}, draw(st.sampled_from([1, 2])))
    gpus = [gpu.functions[0] for gpu in machine.cards(GPU)][:5]
    for pair in combinations(gpus, 2):
        count = draw(st.sampled_from([0, 0, 1, 2, 4]))
        if count:
            machine.nvlinks[pair] = count
    return machine


def mask(cpus: list[int]) -> str:
    """The CPU mask in hwloc's words of 32 bits."""
    value = sum(1 << cpu for cpu in cpus)
    words = [f"0x{value >> 32 * n & 0xFFFFFFFF:08x}" for n in range(value.bit_length() // 32 + 1)]
    return ",".join(reversed(words))


def nccl(machine: Machine, numbers: list[int]) -> str:
    """NCCL's topology XML; ``numbers`` are the NICs' ``dev`` in the order of bus ids and ports."""
    system = Element("system", version="1")
    gpus = [card.functions[0] for card in machine.cards(GPU)]
    nets = [name for card in machine.cards(NIC) for name in card.names]
    devs = dict(zip(nets, numbers, strict=False))

    def pci(parent: Element, busid: str, kind: str, vendor: str) -> Element:
        said = {"busid": busid, "class": kind, "vendor": vendor, "device": "0x0001"}
        return SubElement(parent, "pci", said, link_speed="16.0 GT/s PCIe", link_width="16")

    def below(parent: Element, items: list[Card | Switch]) -> None:
        for item in items:
            if isinstance(item, Switch):
                below(pci(parent, item.busid, "0x060400", "0x10b5"), item.below)
                continue
            kind, ids = CLASSES[item.kind]
            node = pci(parent, item.functions[0], f"0x{kind}00", f"0x{ids[:4]}")
            if item.kind == NIC:
                nic = SubElement(node, "nic")
                for port, name in enumerate(item.names, 1):
                    SubElement(
                        nic, "net", name=name, dev=str(devs[name]), speed="100000", port=str(port)
                    )
            elif item.kind == GPU:
                busid = item.functions[0]
                gpu = SubElement(node, "gpu", dev=str(gpus.index(busid)), sm="80")
                for pair, count in machine.nvlinks.items():
                    if busid in pair:
                        other = pair[1] if pair[0] == busid else pair[0]
                        SubElement(gpu, "nvlink", target=other, count=str(count), tclass="0x030200")

    for numa in machine.numas:
        cpus = [cpu for core in numa.cores for cpu in core]
        affinity = mask(cpus).replace("0x", "")
        cpu = SubElement(system, "cpu", numaid=str(numa.index), affinity=affinity, arch="x86_64")
        for root in numa.roots:
            below(cpu, root.below)
    return ElementTree.tostring(system, encoding="unicode")
