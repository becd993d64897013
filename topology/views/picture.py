"""The picture as SVG, alone or on an HTML page; facts show where the pointer rests."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from topology.model.topology import Topology
from topology.views.layout import Drawing, draw

#: Pixels between boxes and between layers, around the picture, and of a box.
_X, _Y, _MARGIN, _BOX = 104.0, 62.0, 58.0, (96.0, 34.0)
_LONGEST_LABEL = 14
#: What kinds of links are called, with their colours.
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
    """SVG groups of classes ``link`` and ``box``, also of their kinds; pixels of the whole."""

    markup: str
    width: float
    height: float


def shapes(drawing: Drawing) -> Shapes:
    """Draw lines below boxes. Each has a title, which browsers show where the pointer rests."""
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
    """Text for XML, which has no way to write control characters."""
    return escape("".join(c for c in text if c.isprintable() or c == "\n"))
