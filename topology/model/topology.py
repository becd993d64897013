"""The machine as data: devices in a tree, links across it, statements about pairs, and gaps.

Everything here is immutable and independent of sources, files and GPU libraries. Statements of
sources are kept with their provenance. Relations, contradictions and routes are computed on demand
and never stored. Placement, views, cost models and simulators use it::

  topology.gpus                       the GPUs, in index order
  topology.relation("GPU0", "GPU3")   Relation(level=PHB, nvlinks=0, …); .text is topo -m's cell
  topology.matrix()                   the cells, GPUs then NICs
  topology.device("GPU0").get("clock_memory_hz")
  topology.route("GPU0", "NIC1")      hops with bandwidths; see topology.model.graph
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

from busbar.errors import Unsupported
from topology.model.device import (
    Contradiction,
    Device,
    Fact,
    Kind,
    Level,
    Link,
    LinkKind,
    PairFact,
)
from topology.model.graph import Graph, Hop, capability
from topology.model.map import Map, contradictions
from topology.model.rates import Published, published

__all__ = [
    "Device",
    "Fact",
    "Kind",
    "Level",
    "Link",
    "LinkKind",
    "PairFact",
    "Topology",
]


@dataclass(frozen=True)
class Topology(Map):
    """A `Map` with the routes and contradictions that follow from it."""

    def contradictions(self) -> tuple[Contradiction, ...]:
        """Statements that cannot all be true; see topology.model.map."""
        return contradictions(self)

    @cached_property
    def graph(self) -> Graph:
        """The link graph with bandwidths in bytes per second; see topology.model.graph."""
        return Graph(self)

    def route(self, a: str, b: str) -> tuple[Hop, ...]:
        """The hops from a to b; empty if a is b. Raises ProbeError if there is no route."""
        return self.graph.route(a, b)


def with_model(topology: Topology, model: str) -> Topology:
    """The map with this model for GPUs of which no source states one.

    Raises Unsupported for a model without published rates, or if a source states another one.
    """
    known = published(model)
    if known is None:
        raise Unsupported(
            f"--model {model[:60]!r}: no rates are known of it; write B200 or H100 SXM"
        )
    devices = [
        _named(one, model, known) if one.kind is Kind.GPU else one for one in topology.devices
    ]
    return replace(topology, devices=tuple(devices))


def _named(gpu: Device, model: str, known: Published) -> Device:
    stated = str(gpu.get("model") or gpu.name)
    if gpu.whole("sm") is not None or published(stated) is not None:
        if capability(gpu) != known.sm:
            what = stated or f"of compute capability {gpu.whole('sm')}"
            raise Unsupported(f"--model {model[:60]}: {gpu.id} is {what} by its source")
    elif known.sm is not None:
        gpu = replace(gpu, facts=(*gpu.facts, Fact("sm", known.sm, "--model")))
    return gpu if stated else replace(gpu, name=model)


# What a fingerprint has of a machine, and of its devices. Names, serial numbers, clocks,
# temperatures, free memory and the present speed of links are left out: they differ between equal
# nodes, or change from hour to hour.
_MACHINE = ("arch", "vendor", "model", "family", "cpu_model", "iommu")
ALIKE_FACTS = (
    "model", "vendor", "cpu_model", "pci_class", "pci_device", "sm", "cpus", "size", "pcie_gen_max",
    "pcie_width_max", "multiprocessors",
)  # fmt: skip
_LENGTH = 16


def fingerprint(topology: Topology) -> str:
    """16 hex digits of the SHA-256 over devices, their place in the tree, and their links.

    Sources with different knowledge give different fingerprints, so compare maps of equal sources.
    """
    lines = [f"{name}={topology.get(name)}" for name in _MACHINE]
    for device in topology.devices:
        if device.kind is Kind.MIG:  # created and removed while the machine runs
            continue
        facts = (f"{name}={device.get(name)}" for name in ALIKE_FACTS)
        where = f"{device.kind.value} {device.id} {device.busid} in {device.parent}"
        lines.append(" ".join((where, *facts)))
    for link in topology.links:
        ends = " ".join(sorted((link.a, link.b)))
        lines.append(f"link {link.kind.value} {ends} x{link.count} v{link.version}")
    text = "\n".join(sorted(lines))
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]
