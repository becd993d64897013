"""A topology under construction, with the methods by which every source states its facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from topology.model.device import COUNT, Fact, Gap, Value
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
