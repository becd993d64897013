"""The machine as data: devices in a tree, links across it, statements about pairs, and gaps.

Everything here is immutable and knows no source, no file and no GPU library. Statements of sources
are kept with their provenance. Relations, contradictions and routes are computed on demand and
never stored. Placement, views, cost models and simulators use it::

    topology.gpus                       the GPUs, in index order
    topology.relation("GPU0", "GPU3")   Relation(level=PHB, nvlinks=0, …); .text is topo -m's cell
    topology.matrix()                   the cells, GPUs then NICs
    topology.device("GPU0").get("clock_memory_hz")
    topology.route("GPU0", "NIC1")      hops with bandwidths; see topology.model.graph
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from busbar.errors import ProbeError
from topology.model.conflicts import contradictions
from topology.model.device import Contradiction, Device, Kind, Link, LinkKind, PairFact
from topology.model.facts import Fact, Gap
from topology.model.graph import Graph, Hop
from topology.model.map import Map
from topology.model.relation import Level, Relation

__all__ = [
    "Contradiction",
    "Device",
    "Fact",
    "Gap",
    "Kind",
    "Level",
    "Link",
    "LinkKind",
    "PairFact",
    "ProbeError",
    "Relation",
    "Topology",
]


@dataclass(frozen=True)
class Topology(Map):
    """A `Map` with what follows from it: routes and contradictions."""

    def contradictions(self) -> tuple[Contradiction, ...]:
        """Statements that cannot all be right; see topology.model.conflicts."""
        return contradictions(self)

    @cached_property
    def graph(self) -> Graph:
        """The link graph with bandwidths in bytes per second; see topology.model.graph."""
        return Graph(self)

    def route(self, a: str, b: str) -> tuple[Hop, ...]:
        """The hops from a to b; empty from a device to itself. ProbeError if there is no way."""
        return self.graph.route(a, b)
