"""The machine as a tree, for a terminal."""

from __future__ import annotations

import io

from busbar.cpulist import listed, members
from busbar.terminal import make_lines_printable, make_printable
from topology.model.device import Device, Kind
from topology.model.map import Map
from topology.model.topology import Topology
from topology.views.facts import shown, summary, title


def text(topology: Topology, width: int = 80) -> str:
    """Return the tree, wrapped at ``width`` columns.

    What no source says of the way up from a GPU or NIC is inferred from relations, as for routing,
    and marked so.
    """
    whole = topology.graph.topology
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    def grow(branch: Tree, devices: tuple[Device, ...]) -> None:
        for line, below in _lines(whole, devices):
            grow(branch.add(Text(make_printable(line))), below)

    roots = tuple(d for d in whole.devices if d.parent is None and d.kind is not Kind.SWITCH)
    switches = whole.of(Kind.SWITCH)
    head = f"machine, according to {', '.join(whole.sources) or 'no source'}"
    root = Tree(Text(make_printable(head)))
    grow(root, roots)
    if switches:
        grow(root, switches)
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, legacy_windows=False).print(root)
    return make_lines_printable(
        "\n".join(row.rstrip() for row in out.getvalue().splitlines()) + "\n"
    )


def _lines(topology: Map, devices: tuple[Device, ...]) -> list[tuple[str, tuple[Device, ...]]]:
    """Lines with what hangs below them: one a device, but one for all like cores and caches."""
    branches: list[tuple[str, tuple[Device, ...]]] = []
    folded: set[tuple[Kind, str]] = set()
    for device in devices:
        key = (device.kind, device.name)
        alike = tuple(d for d in devices if (d.kind, d.name) == key)
        if key in folded:
            continue
        if device.kind in (Kind.CORE, Kind.CACHE) and len(alike) > 1:
            folded.add(key)
            branches.append((_together(alike), _below(topology, alike)))
        else:
            rest = "inferred" if device.get("inferred") else summary(topology, device)
            line = f"{title(device)}  {rest}".rstrip()
            branches.append((line, _below(topology, (device,))))
    return branches


def _below(topology: Map, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    return tuple(child for device in devices for child in topology.children(device.id))


def _together(alike: tuple[Device, ...]) -> str:
    """``4 x L2 cache  512 KiB each, CPUs 0-3``."""
    first = alike[0]
    name = f"{first.name} cache" if first.kind is Kind.CACHE else "core"
    sizes = {device.get("size") for device in alike}
    size = first.get("size")
    words = [f"{shown('size', size)} each"] if len(sizes) == 1 and size is not None else []
    cpus = {cpu for device in alike for cpu in members(str(device.get("cpus") or "")) or ()}
    if cpus:
        words.append(f"CPUs {listed(cpus)}")
    return f"{len(alike)} x {name}  {', '.join(words)}".rstrip()
