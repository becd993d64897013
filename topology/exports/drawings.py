"""The link graph for other tools, and as a networkx graph for our own pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topology.model.topology import Device, Kind, Topology

if TYPE_CHECKING:
    import networkx as nx

#: Parts of a CPU, and what runs on it, are no nodes of a graph of links.
HIDDEN = (Kind.CACHE, Kind.CORE, Kind.MIG, Kind.RANK)


def label(device: Device) -> str:
    """The id, with the product or interface name in brackets where one is known."""
    name = str(device.get("model") or device.name or "")
    return f"{device.id} ({name})" if name and name != device.id else device.id


def network(topology: Topology) -> nx.Graph:
    """Every device that data passes as a node, every link as an edge.

    Node attributes: label, kind, busid. Edge attributes: kind, count, bandwidth (bytes per second,
    one direction, all parallel links together) and assumed. Links that nobody stated are completed
    as for routing.
    """
    import networkx as nx

    graph = nx.Graph()
    links = topology.graph
    for device in links.topology.devices:
        if device.kind not in HIDDEN:
            facts = {"label": label(device), "kind": device.kind.value}
            graph.add_node(device.id, **facts, busid=device.busid or "")
    for hop in links.hops:
        if hop.a not in graph or hop.b not in graph:
            continue
        graph.add_edge(
            hop.a,
            hop.b,
            kind=hop.kind,
            count=hop.count,
            bandwidth=hop.bandwidth,
            assumed=hop.assumed,
        )
    return graph


def graphml(topology: Topology) -> str:
    """The graph as GraphML, with the attributes of ``network``."""
    import networkx as nx

    return "\n".join(nx.generate_graphml(network(topology))) + "\n"


def dot(topology: Topology) -> str:
    """The graph in Graphviz's language; pen widths grow with bandwidth."""
    graph = network(topology)
    lines = ["graph topology {", "  node [shape=box];"]
    for node, facts in graph.nodes(data=True):
        lines.append(f"  {_quoted(node)} [label={_quoted(facts['label'])}];")
    for a, b, facts in graph.edges(data=True):
        rate = f"{facts['bandwidth'] / 1e9:.1f} GB/s"
        text = "" if facts["kind"] == "memory" else f"{facts['kind']} x{facts['count']}, {rate}"
        width = 1 + facts["bandwidth"] / 1e11 if facts["kind"] != "memory" else 1
        lines.append(
            f"  {_quoted(a)} -- {_quoted(b)} [label={_quoted(text)}, penwidth={min(width, 8):.1f}];"
        )
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'
