"""The link graph for other tools."""

from __future__ import annotations

from busbar.errors import MissingLibrary
from topology.model.graph import Hop
from topology.model.topology import Device, Kind, Topology

#: Parts of a CPU, and what runs on it, are no nodes of a graph of links.
HIDDEN = (Kind.CACHE, Kind.CORE, Kind.MIG, Kind.RANK)


def label(device: Device) -> str:
    """The id, with the product or interface name in brackets where one is known."""
    name = str(device.get("model") or device.name or "")
    return f"{device.id} ({name})" if name and name != device.id else device.id


def links(topology: Topology) -> list[Hop]:
    """The links that data passes, one a pair of devices; those nobody stated as for routing."""
    shown = {device.id for device in _nodes(topology)}
    return list({hop.link: hop for hop in topology.graph.hops if hop.link <= shown}.values())


def graphml(topology: Topology) -> str:
    """The graph as GraphML.

    Node attributes: label, kind, busid. Edge attributes: kind, count, bandwidth (bytes per second,
    one direction, all parallel links together) and assumed. Raises MissingLibrary without networkx.
    """
    try:
        import networkx as nx
    except ImportError:
        raise MissingLibrary("networkx", "graphml") from None

    graph = nx.Graph()
    for device in _nodes(topology):
        facts = {"label": label(device), "kind": device.kind.value, "busid": device.busid or ""}
        graph.add_node(device.id, **facts)
    for hop in links(topology):
        facts = {name: getattr(hop, name) for name in ("kind", "count", "bandwidth", "assumed")}
        graph.add_edge(hop.a, hop.b, **facts)
    return "\n".join(nx.generate_graphml(graph)) + "\n"


def dot(topology: Topology) -> str:
    """The graph in Graphviz's language; pen widths grow with bandwidth."""
    lines = ["graph topology {", "  node [shape=box];"]
    for device in _nodes(topology):
        lines.append(f"  {_quoted(device.id)} [label={_quoted(label(device))}];")
    for hop in links(topology):
        memory = hop.kind == "memory"
        text = "" if memory else f"{hop.kind} x{hop.count}, {hop.bandwidth / 1e9:.1f} GB/s"
        width = 1 if memory else min(8, 1 + hop.bandwidth / 1e11)
        lines.append(
            f"  {_quoted(hop.a)} -- {_quoted(hop.b)} [label={_quoted(text)}, penwidth={width:.1f}];"
        )
    return "\n".join([*lines, "}"]) + "\n"


def _nodes(topology: Topology) -> list[Device]:
    return [device for device in topology.graph.topology.devices if device.kind not in HIDDEN]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'
