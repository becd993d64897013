"""Devices, their facts with sources, their PCI addresses, statements about pairs, and relations.

Import them from ``topology.model.topology``. A relation is in the terms of ``nvidia-smi topo -m``.

Values are in bytes, seconds and bytes per second; any other unit is part of the name. Facts with
unknown names are permitted and shown, but never interpreted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum, IntEnum

_BUSID = re.compile(
    r"(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{1,2}):(?P<device>[0-9a-f]{1,2})"
    r"(?:\.(?P<function>[0-7]))?",
    re.IGNORECASE,
)


def canonical(text: str) -> str | None:
    """A PCI bus id as ``dddd:bb:dd.f`` in lower case, or None for any other text.

    NVML writes eight domain digits, sysfs four, CUDA leaves out the function and lspci the domain.
    Domains above ``ffff`` (VMD, Hyper-V) keep the digits they need. Device numbers end at ``1f``:
    PCI has five bits for them.
    """
    match = _BUSID.fullmatch(text.strip())
    if match is None or int(match["device"], 16) > 0x1F:
        return None
    domain = int(match["domain"] or "0", 16)
    bus, device = int(match["bus"], 16), int(match["device"], 16)
    return f"{domain:04x}:{bus:02x}:{device:02x}.{match['function'] or '0'}"


def order(busid: str) -> list[int]:
    """The sort key of a canonical bus id, as domains differ in their number of digits."""
    return [int(part, 16) for part in busid.replace(".", ":").split(":")]


def slot(busid: str) -> str:
    """A canonical bus id without its function, which is common to the functions of a card."""
    return busid.rpartition(".")[0]


Value = str | int | float | bool | tuple[str, ...] | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True)
class Fact:
    """One statement by one source: ``Fact("pcie_gen", 4, "nvml")``."""

    name: str
    value: Value
    source: str


@dataclass(frozen=True)
class Gap:
    """A query that a source did not answer, or a statement that the map did not use.

    ``call`` is COUNT if devices of the text are missing in the map.
    """

    source: str
    subject: str
    call: str
    reason: str


#: The ``call`` of a gap that compares the number of devices in a text and in the map.
COUNT = "count"

#: Facts that may differ between sources without a contradiction: they change with time, or each
#: source spells them differently.
VOLATILE = frozenset({
    "label", "guid", "net_names", "pcie_gen", "pcie_rate", "clock_sm_hz", "clock_memory_hz",
    "throttle", "idle", "pstate", "power_w", "energy_j", "temperature_c", "memory_used",
    "processes", "utilization_percent", "net_state", "nvlink_errors", "ecc_corrected",
})  # fmt: skip
#: Facts of a pair that hold in both directions; all others are directed.
SYMMETRIC = frozenset({"level", "nvlinks"})


class Kind(str, Enum):
    """Kinds of devices."""

    HOST = "host"
    PACKAGE = "package"
    NUMA = "numa"
    CACHE = "cache"
    CORE = "core"
    ROOT = "root"
    BRIDGE = "bridge"
    SWITCH = "nvswitch"
    GPU = "gpu"
    MIG = "mig"
    NIC = "nic"
    DIRECT = "data-direct"
    RANK = "rank"


class LinkKind(str, Enum):
    """Kinds of links that are not branches of the tree."""

    NVLINK = "nvlink"
    C2C = "c2c"
    CPU = "cpu"
    NETWORK = "network"


def values_by_source(facts: tuple[Fact, ...], name: str) -> dict[str, Value]:
    """The values of the facts with this name by source, in order of trust."""
    return {fact.source: fact.value for fact in facts if fact.name == name}


@dataclass(frozen=True)
class Device:
    """One device.

    ``id`` is unique in its topology and readable: GPU0, NIC1, NUMA0, NVS0, ``PCI:0000:03:00.0``.
    ``index`` counts within the kind (for GPUs it is NVML's index). ``parent`` is an id or None.
    Facts with the same name are in order of trust; the first is the one to use.
    """

    id: str
    kind: Kind
    index: int | None = None
    name: str = ""
    busid: str | None = None
    uuid: str | None = None
    parent: str | None = None
    facts: tuple[Fact, ...] = ()

    def get(self, name: str) -> Value | None:
        """The value of the most trusted fact with this name, or None."""
        return next((fact.value for fact in self.facts if fact.name == name), None)

    def number(self, name: str) -> float | None:
        """The fact as a number, or None if it is missing or not a number."""
        value = self.get(name)
        return float(value) if isinstance(value, int | float) else None

    def whole(self, name: str) -> int | None:
        """The fact as an integer, or None if it is missing or not an integer."""
        value = self.get(name)
        return value if isinstance(value, int) else None

    @property
    def net_names(self) -> tuple[str, ...]:
        """The names of a network adapter: its own name, then those of its interfaces."""
        value = self.get("net_names")
        names = (self.name, *(map(str, value) if isinstance(value, tuple) else ()))
        return tuple(dict.fromkeys(filter(None, names)))

    @property
    def net_name(self) -> str:
        """The first of `net_names`, or an empty text."""
        return next(iter(self.net_names), "")


@dataclass(frozen=True)
class Link:
    """A link that is not a branch of the PCIe tree: NVLink, C2C, CPU to CPU, network.

    ``count``: physical links in parallel. ``rate``: bytes per second of *one* of them in one
    direction, as the source stated it, or None.
    """

    kind: LinkKind
    a: str
    b: str
    source: str
    count: int = 1
    version: int | None = None
    rate: float | None = None


@dataclass(frozen=True)
class PairFact:
    """A statement about two devices, from ``a`` to ``b`` unless its name is in SYMMETRIC."""

    a: str
    b: str
    fact: Fact


@dataclass(frozen=True)
class Contradiction:
    """A contradiction between sources. ``values``: the value of each source."""

    subject: str
    name: str
    values: dict[str, Value] = field(hash=False)


class Level(IntEnum):
    """How near two devices are: their nearest common PCIe ancestor. A smaller level is nearer.

    PIX at most one PCIe bridge, PXB several, PHB a host bridge, NODE several host bridges of one
    NUMA node, SYS the link between NUMA nodes. LOC is a device and itself.
    """

    LOC = 0
    PIX = 10
    PXB = 20
    PHB = 30
    NODE = 40
    SYS = 50


#: Old and other tools' words for the same levels: SOC is SYS before driver 390 and PSB is DCGM's
#: word for two GPUs of one board, which nvidia-smi prints as PIX.
LEVEL_WORDS = {
    "X": Level.LOC,
    "LOC": Level.LOC,
    "PSB": Level.PIX,
    "PIX": Level.PIX,
    "PXB": Level.PXB,
    "PHB": Level.PHB,
    "NODE": Level.NODE,
    "SYS": Level.SYS,
    "SOC": Level.SYS,
}


@dataclass(frozen=True)
class Relation:
    """What is known of one pair: the PCIe ancestor and, independently, the NVLinks.

    ``nvidia-smi`` prints NV# instead of the ancestor, so a pair may have ``nvlinks`` and no
    ``level``. ``sources``: the sources of these values; ``derived`` means computed from the tree.
    """

    level: Level | None = None
    nvlinks: int = 0
    sources: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The pair's word in nvidia-smi's matrix: ``X``, ``NV4``, ``PIX`` …; ``?`` if not known."""
        if self.level is Level.LOC:
            return "X"
        if self.nvlinks:
            return f"NV{self.nvlinks}"
        return "?" if self.level is None else self.level.name
