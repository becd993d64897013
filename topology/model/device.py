"""The types of a map: devices, links, statements about pairs, contradictions.

Import them from ``topology.model.topology``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from topology.model.facts import Fact, Value


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


def said_of(facts: tuple[Fact, ...], name: str) -> dict[str, Value]:
    """All statements of a name: ``{source: value}``, in order of trust."""
    return {fact.source: fact.value for fact in facts if fact.name == name}


@dataclass(frozen=True)
class Device:
    """One device.

    ``id`` is unique in its topology and readable: GPU0, NIC1, NUMA0, NVS0, ``PCI:0000:03:00.0``.
    ``index`` counts within the kind (for GPUs it is NVML's index). ``parent`` is an id or None.
    Facts of one name stand in order of trust; the first is the one to use.
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
        """The most trusted statement of that name, or None."""
        return next((fact.value for fact in self.facts if fact.name == name), None)

    def number(self, name: str) -> float | None:
        """The fact as a number, or None where it is missing or is none."""
        value = self.get(name)
        return float(value) if isinstance(value, int | float) else None

    def said(self, name: str) -> dict[str, Value]:
        """All statements of that name: ``{source: value}``, in order of trust."""
        return said_of(self.facts, name)

    def whole(self, name: str) -> int | None:
        """The fact as a whole number, or None where it is missing or is none."""
        value = self.get(name)
        return value if isinstance(value, int) else None

    @property
    def net_names(self) -> tuple[str, ...]:
        """The names of a network adapter: its own, then its interfaces'."""
        said = self.get("net_names")
        names = (self.name, *(map(str, said) if isinstance(said, tuple) else ()))
        return tuple(dict.fromkeys(filter(None, names)))

    @property
    def net_name(self) -> str:
        """The first of `net_names`, or an empty text."""
        return next(iter(self.net_names), "")


@dataclass(frozen=True)
class Link:
    """A link that is not a branch of the PCIe tree: NVLink, C2C, CPU to CPU, network.

    ``count`` physical links in parallel; ``rate`` bytes per second of *one* of them in one
    direction as the source stated it, None where it did not.
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
    """A statement about two devices, from ``a`` to ``b`` unless its name is symmetric."""

    a: str
    b: str
    fact: Fact


@dataclass(frozen=True)
class Contradiction:
    """Sources that cannot all be right. ``said`` is {source: value}."""

    subject: str
    name: str
    said: dict[str, Value] = field(hash=False)
