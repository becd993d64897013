"""The picture as SVG (matplotlib) and as a page (plotly). Both libraries are optional."""

from __future__ import annotations

import html
import io
from xml.etree import ElementTree

from busbar.errors import MissingLibrary
from topology.model.topology import Kind, Topology
from topology.views.layout import Box, Drawing, draw

_FILL = {
    Kind.GPU.value: "#76b900",
    Kind.NIC.value: "#f4a259",
    Kind.DIRECT.value: "#f4a259",
    Kind.SWITCH.value: "#b8d98a",
    Kind.BRIDGE.value: "#9fb8d9",
    Kind.ROOT.value: "#c3d3e8",
    Kind.NUMA.value: "#e3d7ee",
}
_PLAIN = "#eeeeee"
_STROKE = {"nvlink": "#4f8a10", "c2c": "#a03070", "pcie": "#4a6fa5", "cpu": "#7d5ba6"}
_GREY = "#b5b5b5"
_SVG = "http://www.w3.org/2000/svg"


def svg(topology: Topology) -> str:
    """Return the picture as SVG; boxes and lines have titles that browsers show when hovered.

    Raises MissingLibrary when matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingLibrary("matplotlib", "--svg") from None
    drawing = draw(topology)
    figure = Figure(figsize=(max(6.0, 1.05 * drawing.width), max(3.5, 1.35 * drawing.layers + 0.8)))
    FigureCanvasSVG(figure)
    axes = figure.add_axes((0.02, 0.06, 0.96, 0.9))
    axes.axis("off")
    for number, edge in enumerate(drawing.edges):
        xs, ys = zip(*edge.points, strict=True)
        color = _STROKE.get(edge.kind, _GREY)
        axes.plot(
            xs, ys, color=color, linewidth=edge.width, alpha=0.75, zorder=1, gid=f"edge{number}"
        )
    for number, node in enumerate(drawing.nodes):
        box = {"boxstyle": "round,pad=0.45", "facecolor": _fill(node), "edgecolor": "#444444"}
        text = axes.text(
            node.x, node.y, node.label, ha="center", va="center", fontsize=8, bbox=box, zorder=2
        )
        text.set_parse_math(False)
        text.set_gid(f"node{number}")
    _legend(axes, drawing)
    axes.margins(0.08, 0.12)
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return _titled(out.getvalue(), drawing)


def _legend(axes: object, drawing: Drawing) -> None:
    """Name the kinds of links that occur; widths speak for themselves."""
    from matplotlib.lines import Line2D

    kinds = [kind for kind in _STROKE if any(edge.kind == kind for edge in drawing.edges)]
    lines = [Line2D([], [], color=_STROKE[kind], linewidth=3, label=kind) for kind in kinds]
    if lines:
        axes.legend(  # type: ignore[attr-defined]
            handles=lines,
            loc="upper right",
            fontsize=8,
            frameon=False,
            title="width: bandwidth",
            title_fontsize=8,
        )


def _titled(picture: bytes, drawing: Drawing) -> str:
    """Give every box and line of our own SVG a <title>; ElementTree escapes what it says."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(picture)  # noqa: S314  # written a moment ago by matplotlib
    said = {f"edge{n}": edge.hover for n, edge in enumerate(drawing.edges)}
    said |= {f"node{n}": "\n".join(node.hover) for n, node in enumerate(drawing.nodes)}
    for group in root.iter(f"{{{_SVG}}}g"):
        hover = said.get(group.get("id", ""))
        if hover is not None:
            title = ElementTree.Element(f"{{{_SVG}}}title")
            title.text = "".join(c for c in hover if c.isprintable() or c == "\n")
            group.insert(0, title)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def page(topology: Topology) -> str:
    """Return the picture as one HTML page that needs no network; facts show when hovered.

    Raises MissingLibrary when plotly is not installed.
    """
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise MissingLibrary("plotly", "--html") from None
    drawing = draw(topology)
    traces = []
    for edge in drawing.edges:
        xs, ys = zip(*edge.points, strict=True)
        line = {"color": _STROKE.get(edge.kind, _GREY), "width": edge.width, "shape": "spline"}
        traces.append(go.Scatter(x=xs, y=ys, mode="lines", line=line, hoverinfo="skip"))
    middles = [edge.points[len(edge.points) // 2] for edge in drawing.edges]
    ends = [edge.points[0] for edge in drawing.edges]
    spots = [
        m if len(e.points) > 2 else ((m[0] + s[0]) / 2, (m[1] + s[1]) / 2)
        for e, m, s in zip(drawing.edges, middles, ends, strict=True)
    ]
    traces.append(
        go.Scatter(
            x=[x for x, _ in spots],
            y=[y for _, y in spots],
            mode="markers",
            marker={"size": 9, "color": "rgba(0,0,0,0.08)"},
            hovertext=[html.escape(edge.hover) for edge in drawing.edges],
            hoverinfo="text",
        )
    )
    traces.append(
        go.Scatter(
            x=[node.x for node in drawing.nodes],
            y=[node.y for node in drawing.nodes],
            mode="markers+text",
            marker={
                "symbol": "square",
                "size": 34,
                "color": [_fill(node) for node in drawing.nodes],
                "line": {"color": "#444444", "width": 1},
            },
            text=[html.escape(node.label) for node in drawing.nodes],
            textfont={"size": 10},
            hovertext=["<br>".join(map(html.escape, node.hover)) for node in drawing.nodes],
            hoverinfo="text",
        )
    )
    figure = go.Figure(traces)
    blank = {"visible": False}
    figure.update_layout(
        showlegend=False,
        xaxis=blank,
        yaxis=blank,
        plot_bgcolor="white",
        margin={"l": 10, "r": 10, "t": 40, "b": 10},
        title={"text": html.escape(f"topology, as said by {', '.join(topology.sources)}")},
        hoverlabel={"align": "left"},
    )
    text: str = figure.to_html(include_plotlyjs=True, full_html=True)
    return text


def _fill(node: Box) -> str:
    return _FILL.get(node.kind, _PLAIN)
