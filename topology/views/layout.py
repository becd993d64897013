"""The layout of the picture.

Layers from host to GPU and NIC, NVSwitches below. Leaves keep the order of the tree, so that
devices of one NUMA node or switch are adjacent. A parent is centred above its children.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

from topology.exports.drawings import HIDDEN, links
from topology.model.device import Device, Kind
from topology.model.graph import Hop
from topology.model.map import Map
from topology.model.topology import Topology
from topology.views.facts import everything, summary, title

_LEAVES = (Kind.GPU, Kind.NIC, Kind.DIRECT)
_ROW = 1.6
_BEND = 0.22
_THINNEST, _THICKEST = 0.8, 7.0
_Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A box: centre, its kind, a short label and lines for hovering."""

    id: str
    kind: str
    x: float
    y: float
    label: str
    hover: tuple[str, ...]


@dataclass(frozen=True)
class Edge:
    """A link; ``width`` in points of the page; ``hover`` says what link it is.

    ``points``: its ends, and between them the middle of an arc where it is one.
    """

    a: str
    b: str
    kind: str
    points: tuple[_Point, ...]
    width: float
    hover: str


@dataclass(frozen=True)
class Drawing:
    """The picture; a box is 1 wide."""

    nodes: tuple[Box, ...]
    edges: tuple[Edge, ...]


def draw(topology: Topology) -> Drawing:
    """Place all devices and links, completed where the sources only know relations."""
    whole = topology.graph.topology
    layers = _layers(whole)
    columns = _columns(whole, layers)
    rows = {layer: -_ROW * place for place, layer in enumerate(sorted(set(layers.values())))}
    places = {id: (columns[id], rows[layer]) for id, layer in layers.items()}
    hops = [hop for hop in links(topology) if hop.a in layers and hop.b in layers]
    fastest = max((hop.bandwidth for hop in hops if hop.kind != "memory"), default=1.0)
    nodes = tuple(
        Box(id, whole.device(id).kind.value, *places[id], *_words(whole, whole.device(id)))
        for id in layers
    )
    edges = tuple(
        Edge(
            hop.a,
            hop.b,
            hop.kind,
            _line(places[hop.a], places[hop.b], layers[hop.a] == layers[hop.b], hop.kind == "cpu"),
            max(_THINNEST, _THICKEST * hop.bandwidth / fastest if hop.kind != "memory" else 0),
            _said(hop),
        )
        for hop in hops
    )
    return Drawing(nodes, edges)


def _columns(topology: Map, layers: dict[str, int]) -> dict[str, float]:
    """The place of every device from left to right, a box being 1 wide."""
    switches = [switch.id for switch in topology.of(Kind.SWITCH)]
    inner = {topology.device(id).parent for id in layers if id not in switches}
    ends = [id for id in layers if id not in inner and id not in switches]
    found = {id: float(place) for place, id in enumerate(ends)}
    for id in reversed(layers):
        if id in inner:
            below = [found[child.id] for child in topology.children(id) if child.id in found]
            found[id] = sum(below) / len(below)
    step = len(ends) / (len(switches) + 1)
    return found | {id: step * (place + 1) - 0.5 for place, id in enumerate(switches)}


def _layers(topology: Map) -> dict[str, int]:
    """The layer of every device that is drawn, in depth-first order of the tree."""
    found: dict[str, int] = {}

    def walk(device: Device, depth: int) -> None:
        if device.kind in HIDDEN:
            return
        found[device.id] = depth
        for child in topology.children(device.id):
            walk(child, depth + 1)

    for device in topology.devices:
        if device.parent is None and device.kind is not Kind.SWITCH:
            walk(device, 0)
    bottom = max(found.values(), default=0)
    for id in found:
        if topology.device(id).kind in _LEAVES:
            found[id] = bottom
    found.update((switch.id, bottom + 1) for switch in topology.of(Kind.SWITCH))
    return found


def _words(topology: Map, device: Device) -> tuple[str, tuple[str, ...]]:
    lines = [title(device), summary(topology, device), *everything(device)]
    label = device.id.removeprefix("PCI:").removeprefix("ROOT:0000:")
    return label, tuple(dict.fromkeys(line for line in lines if line))


def _said(hop: Hop) -> str:
    if hop.kind == "memory":
        return f"{hop.a} - {hop.b}: inside the node"
    count = f" x{hop.count}" if hop.kind in ("pcie", "nvlink") else ""
    guess = " (assumed)" if hop.assumed else ""
    return f"{hop.a} - {hop.b}: {hop.kind}{count}, {hop.bandwidth / 1e9:.1f} GB/s one way{guess}"


def _line(a: _Point, b: _Point, bent: bool, shallow: bool) -> tuple[_Point, ...]:
    """Straight between layers; within a layer an arc below, deeper the longer it is."""
    if not bent:
        return (a, b)
    sag = -_BEND * hypot(a[0] - b[0], a[1] - b[1]) - 0.25
    sag = max(sag, -0.35 * _ROW) if shallow else sag
    return (a, ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2 + sag), b)
