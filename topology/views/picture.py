"""Draw a map as SVG, alone or on an HTML page; facts appear when the pointer is over a device.

Layers go from the host down to GPUs and NICs, with NVSwitches below. Leaves keep the order of the
tree, so that devices of one NUMA node or switch are adjacent. Parents are centred above children.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import hypot
from typing import NamedTuple

from topology.exports import HIDDEN, links
from topology.model.device import Device, Kind
from topology.model.graph import Hop
from topology.model.map import Map
from topology.model.topology import Topology
from topology.views.terminal import everything, summary, title

_LEAVES = (Kind.GPU, Kind.NIC, Kind.DIRECT)
_ROW = 1.6
_BEND = 0.22
_THINNEST, _THICKEST = 0.8, 7.0
_Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A device's box: its centre, its kind, a short label, and the lines shown on hovering."""

    id: str
    kind: str
    x: float
    y: float
    label: str
    hover: tuple[str, ...]


@dataclass(frozen=True)
class Edge:
    """A link. ``width``: in pixels; ``hover``: the text shown on hovering.

    ``points``: the two ends; for an arc the arc's middle is between them.
    """

    a: str
    b: str
    kind: str
    points: tuple[_Point, ...]
    width: float
    hover: str


@dataclass(frozen=True)
class Drawing:
    """The boxes and lines of a picture; the unit is the distance of two adjacent boxes."""

    nodes: tuple[Box, ...]
    edges: tuple[Edge, ...]


def draw(topology: Topology) -> Drawing:
    """Place all devices and links, including those inferred from relations of devices."""
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
            _describe_hop(hop),
        )
        for hop in hops
    )
    return Drawing(nodes, edges)


def _columns(topology: Map, layers: dict[str, int]) -> dict[str, float]:
    """The horizontal place of each device; adjacent leaves are 1 apart."""
    switches = [switch.id for switch in topology.of(Kind.SWITCH)]
    inner = {topology.device(id).parent for id in layers if id not in switches}
    ends = [id for id in layers if id not in inner and id not in switches]
    columns = {id: float(place) for place, id in enumerate(ends)}
    for id in reversed(layers):
        if id in inner:
            below = [columns[child.id] for child in topology.children(id) if child.id in columns]
            columns[id] = sum(below) / len(below)
    step = len(ends) / (len(switches) + 1)
    return columns | {id: step * (place + 1) - 0.5 for place, id in enumerate(switches)}


def _layers(topology: Map) -> dict[str, int]:
    """The layer of each device that is drawn, in depth-first order of the tree; 0 is the top."""
    layers: dict[str, int] = {}

    def walk(device: Device, depth: int) -> None:
        if device.kind in HIDDEN:
            return
        layers[device.id] = depth
        for child in topology.children(device.id):
            walk(child, depth + 1)

    for device in topology.devices:
        if device.parent is None and device.kind is not Kind.SWITCH:
            walk(device, 0)
    bottom = max(layers.values(), default=0)
    for id in layers:
        if topology.device(id).kind in _LEAVES:
            layers[id] = bottom
    layers.update((switch.id, bottom + 1) for switch in topology.of(Kind.SWITCH))
    return layers


def _words(topology: Map, device: Device) -> tuple[str, tuple[str, ...]]:
    lines = [title(device), summary(topology, device), *everything(device)]
    label = device.id.removeprefix("PCI:").removeprefix("ROOT:0000:")
    return label, tuple(dict.fromkeys(line for line in lines if line))


def _describe_hop(hop: Hop) -> str:
    if hop.kind == "memory":
        return f"{hop.a} - {hop.b}: inside the node"
    count = f" x{hop.count}" if hop.kind in ("pcie", "nvlink") else ""
    guess = " (assumed)" if hop.assumed else ""
    return f"{hop.a} - {hop.b}: {hop.kind}{count}, {hop.bandwidth / 1e9:.1f} GB/s one way{guess}"


def _line(a: _Point, b: _Point, bent: bool, shallow: bool) -> tuple[_Point, ...]:
    """The points of a straight line, or if ``bent`` of an arc below, which is deeper if longer."""
    if not bent:
        return (a, b)
    sag = -_BEND * hypot(a[0] - b[0], a[1] - b[1]) - 0.25
    sag = max(sag, -0.35 * _ROW) if shallow else sag
    return (a, ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2 + sag), b)


#: In pixels: the distances of boxes and of layers, the margin, and a box's width and height.
_X, _Y, _MARGIN, _BOX = 104.0, 62.0, 58.0, (96.0, 34.0)
_LONGEST_LABEL = 14
#: For each kind of links its name and its colour.
LINKS = {
    "nvlink": ("NVLink", "#4f8a10"),
    "c2c": ("C2C", "#a03070"),
    "pcie": ("PCIe", "#4a6fa5"),
    "cpu": ("between CPUs", "#7d5ba6"),
    "network": ("network", "#c07a2c"),
}
_BOXES = {
    "gpu": "#76b900", "nic": "#f4a259", "data-direct": "#f4a259", "nvswitch": "#b8d98a",
    "bridge": "#9fb8d9", "root": "#c3d3e8", "numa": "#e3d7ee",
}  # fmt: skip
_STYLE = "".join([
    "text { font: 12px system-ui, sans-serif; } .box text { text-anchor: middle; }",
    " path { fill: none; stroke: #b5b5b5; stroke-linecap: round; opacity: .75; }",
    " rect { fill: #eeeeee; stroke: #444444; }",
    *(f" .{kind} path {{ stroke: {colour}; }}" for kind, (_, colour) in LINKS.items()),
    *(f" .{kind} rect {{ fill: {colour}; }}" for kind, colour in _BOXES.items()),
])  # fmt: skip


class Shapes(NamedTuple):
    """SVG groups with the classes ``link`` or ``box`` and a kind; the picture's size in pixels."""

    markup: str
    width: float
    height: float


def shapes(drawing: Drawing) -> Shapes:
    """Draw lines, and boxes over them. Each has a title, which browsers show on hovering."""
    xs = [n.x for n in drawing.nodes] + [x for e in drawing.edges for x, _ in e.points]
    ys = [n.y for n in drawing.nodes] + [y for e in drawing.edges for _, y in e.points]
    left, top = min(xs, default=0.0), max(ys, default=0.0)

    def at(x: float, y: float) -> tuple[float, float]:
        return (x - left) * _X + _MARGIN, (top - y) * _Y + _MARGIN - 20

    parts = []
    for edge in drawing.edges:
        (ax, ay), *middle, (bx, by) = (at(*point) for point in edge.points)
        # The control point of the quadratic curve through the middle.
        bend = "".join(
            f"Q{2 * x - (ax + bx) / 2:.1f},{2 * y - (ay + by) / 2:.1f} " for x, y in middle
        )
        way = f"M{ax:.1f},{ay:.1f} {bend or 'L'}{bx:.1f},{by:.1f}"
        line = f'<path d="{way}" stroke-width="{edge.width:.1f}"/>'
        parts.append(_group(f"link {edge.kind}", edge.hover, line))
    wide, high = _BOX
    for node in drawing.nodes:
        x, y = at(node.x, node.y)
        long = len(node.label) > _LONGEST_LABEL
        label = f"{node.label[: _LONGEST_LABEL - 1]}…" if long else node.label
        box = (
            f'<rect x="{x - wide / 2:.1f}" y="{y - high / 2:.1f}" width="{wide}" height="{high}"'
            f' rx="6"/><text x="{x:.1f}" y="{y + 4:.1f}">{_text(label)}</text>'
        )
        parts.append(_group(f"box {node.kind}", "\n".join(node.hover), box))
    width = (max(xs, default=0.0) - left) * _X + 2 * _MARGIN
    height = (top - min(ys, default=0.0)) * _Y + 2 * _MARGIN - 40
    return Shapes("\n".join(parts), width, height)


def svg(topology: Topology) -> str:
    """Return the picture as an SVG file, with a legend of the kinds of links that occur."""
    drawing = draw(topology)
    markup, width, height = shapes(drawing)
    kinds = [kind for kind in LINKS if any(edge.kind == kind for edge in drawing.edges)]
    legend = [
        f'<g class="{kind}"><path d="M{at},{height} h24" stroke-width="4"/>'
        f'<text x="{at + 30}" y="{height + 4}">{LINKS[kind][0]}</text></g>'
        for at, kind in zip(range(10, 1000, 130), kinds, strict=False)
    ]
    end = 130.0 * len(kinds) + 10
    wide, high = max(width, end + 150), height + 20
    legend.append(f'<text x="{end}" y="{height + 4}">a wider line carries more</text>')
    drawn = "\n".join([markup, *legend])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{high:.0f}"'
        f' style="background: white" role="img" aria-label="{_text(_title(topology))}">\n'
        f"<style>{_STYLE}</style>\n{drawn}\n</svg>\n"
    )


def page(topology: Topology) -> str:
    """Return the picture as one HTML page that needs no network."""
    title = _text(_title(topology))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<body style="font-family: system-ui, sans-serif">\n<h1>{title}</h1>\n'
        f"{svg(topology)}</html>\n"
    )


def _title(topology: Topology) -> str:
    return f"Topology, according to {', '.join(topology.sources)}"


def _group(name: str, title: str, inside: str) -> str:
    return f'<g class="{name}"><title>{_text(title)}</title>{inside}</g>'


def _text(text: str) -> str:
    """Escape text for XML, and remove control characters, which XML does not allow."""
    return escape("".join(c for c in text if c.isprintable() or c == "\n"))
