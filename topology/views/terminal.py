"""Text of a map and of findings for terminals: matrix, tree, facts. Imports no slow library.

The matrix is that of ``nvidia-smi topo -m``.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

from busbar.cpulist import listed, members
from busbar.tables import render_csv
from busbar.terminal import make_lines_printable, make_printable, wrap_line
from busbar.units import format_bytes, format_count, format_frequency, format_rate
from topology.diagnostics import Finding
from topology.exports import affinity
from topology.model.device import Value
from topology.model.map import Map
from topology.model.topology import Device, Kind, Topology


def _rate(value: float) -> str:
    return f"{format_rate(value, '.4g')} GB/s"


_UNITS: dict[str, Callable[[float], str]] = {
    "memory": format_bytes,
    "memory_used": format_bytes,
    "bar1": format_bytes,
    "size": format_bytes,
    "pcie_rate": _rate,
    "net_rate": _rate,
    "nvlink_rate": _rate,
    "copy_rate": _rate,
    "host_to_device": _rate,
    "device_to_host": _rate,
    "host_both": _rate,
}


def shown(name: str, value: Value) -> str:
    """A fact's value with its unit: ``1.771 GHz``, ``80 GiB``; without one if it has none."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        unit = format_frequency if name.endswith("_hz") else _UNITS.get(name)
        return unit(float(value)) if unit else f"{value:g}"
    return value


def title(device: Device) -> str:
    """A device's id with its product or interface names: ``NIC0 mlx5_0``."""
    words = [device.id, str(device.get("model") or ""), *device.net_names]
    return " ".join(dict.fromkeys(w for w in words if w == device.id or w not in device.id))


def summary(topology: Map, device: Device) -> str:
    """The facts about a device for its line in the tree; empty if there are none."""
    words: list[str] = []
    if device.busid and device.busid not in device.id:
        words.append(device.busid)
    if device.kind in (Kind.GPU, Kind.NIC, Kind.BRIDGE):
        gen = device.get("pcie_gen_max") or device.get("pcie_gen")
        width = device.get("pcie_width") or device.get("pcie_width_max")
        if gen or width:
            words.append(f"PCIe{f' gen{gen}' if gen else ''}{f' x{width}' if width else ''}")
    for name in ("memory", "size", "net_rate", "cpus", "net_state"):
        value = device.get(name)
        if value is not None:
            words.append(f"CPUs {value}" if name == "cpus" else shown(name, value))
    if device.kind is Kind.GPU:
        words += _peers(topology, device)
    return ", ".join(words)


def _peers(topology: Map, gpu: Device) -> list[str]:
    """``NVLink x12 to every GPU``, or if the numbers of links differ, each GPU with its number."""
    counts = {
        other.id: topology.nvlinks(gpu.id, other.id)
        for other in topology.gpus
        if other.id != gpu.id
    }
    if not any(counts.values()):
        return []
    if len(counts) > 1 and len(set(counts.values())) == 1:
        return [f"NVLink x{next(iter(counts.values()))} to every GPU"]
    listed = ", ".join(f"{id} x{count}" for id, count in counts.items() if count)
    return [f"NVLink to {listed}"]


def everything(device: Device) -> list[str]:
    """All facts about a device, one per line, each with its source: ``pcie_width: 8 (sysfs)``."""
    known = (("name", device.name), ("bus id", device.busid), ("uuid", device.uuid))
    lines = [f"{name}: {value}" for name, value in known if value]
    return lines + [f"{f.name}: {shown(f.name, f.value)} ({f.source})" for f in device.facts]


_COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_UNDERLINE = ("\x1b[4m", "\x1b[0m")
_LEGEND = """\

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def matrix_text(topology: Topology, underline: bool = False) -> str:
    """Return the matrix with its legends, as nvidia-smi prints it, with tabs between columns.

    ``underline``: put the header into the terminal escapes that nvidia-smi always writes. A pair
    of which no source states anything is ``?``, which the legend then explains. Empty for an empty
    map.
    """
    ends = topology.endpoints
    if not ends:
        return ""
    columns = _columns(topology)
    on, off = _UNDERLINE if underline else ("", "")
    header = "\t".join(make_printable(word) for word in (*(end.id for end in ends), *columns))
    lines = [f"\t{on}{header}{off}"]
    cells = topology.matrix()
    for end, row in zip(ends, cells, strict=True):
        shown = [f" {cell} " if cell == "X" else cell for cell in row]
        tail = _tail(topology, end, columns)
        if len(tail) == len(_COLUMNS):
            # nvidia-smi writes one tab too many before the last column.
            tail.insert(2, "")
        lines.append("\t".join(map(make_printable, [end.id, *shown, *tail])))
    legend = _LEGEND
    if any("?" in row for row in cells):
        legend += "  ?    = No source says\n"
    return "\n".join(lines) + "\n" + legend + _nic_legend(topology)


def matrix_csv(topology: Topology) -> str:
    """Return the matrix as CSV (RFC 4180): a header, then a row per device; without formulas."""
    columns, ends = _columns(topology), topology.endpoints
    lines = [["", *(end.id for end in ends), *columns]]
    for end, row in zip(ends, topology.matrix(), strict=True):
        lines.append([end.id, *row, *_tail(topology, end, columns)])
    return render_csv(map(make_printable, line) for line in lines)


def _columns(topology: Topology) -> list[str]:
    """The affinity columns for which the map has facts; GPU NUMA ID follows NUMA Affinity."""
    gpus = topology.gpus
    cpu = any(affinity(topology, gpu.id) for gpu in gpus)
    numa = any(_numa(topology, gpu) for gpu in gpus)
    return [*_COLUMNS[: int(cpu)], *(_COLUMNS[1:] if numa else ())]


def _tail(topology: Topology, end: Device, columns: list[str]) -> list[str]:
    if end.kind is not Kind.GPU:
        return [""] * len(columns)
    stated = end.get("gpu_numa_id")
    values = {
        "CPU Affinity": affinity(topology, end.id) or "",
        "NUMA Affinity": _numa(topology, end),
        "GPU NUMA ID": "N/A" if stated is None else str(stated),
    }
    return [values[column] for column in columns]


def _numa(topology: Topology, gpu: Device) -> str:
    stated = gpu.get("numa_affinity")
    if stated is not None:
        return str(stated)
    numa = topology.ancestor(gpu.id, Kind.NUMA)
    return "" if numa is None or numa.index is None else str(numa.index)


def _nic_legend(topology: Topology) -> str:
    named = [(end.id, end.net_name) for end in topology.endpoints if end.kind is not Kind.GPU]
    lines = [make_printable(f"  {id}: {name}") for id, name in named if name]
    return "\nNIC Legend:\n\n" + "\n".join(lines) + "\n" if lines else ""


def tree_text(topology: Topology, width: int = 80) -> str:
    """Return the tree of devices, wrapped at ``width`` columns.

    If no source states the devices above a GPU or NIC, they are inferred from relations, as for
    routing, and marked as inferred.
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
    """A line per device with the devices below it; similar cores or caches share one line."""
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
    """The line for similar cores or caches: ``4 x L2 cache  512 KiB each, CPUs 0-3``."""
    first = alike[0]
    name = f"{first.name} cache" if first.kind is Kind.CACHE else "core"
    sizes = {device.get("size") for device in alike}
    size = first.get("size")
    words = [f"{shown('size', size)} each"] if len(sizes) == 1 and size is not None else []
    cpus = {cpu for device in alike for cpu in members(str(device.get("cpus") or "")) or ()}
    if cpus:
        words.append(f"CPUs {listed(cpus)}")
    return f"{len(alike)} x {name}  {', '.join(words)}".rstrip()


def findings_text(
    topology: Topology, findings: Sequence[Finding], width: int = 80, known: int = 0
) -> str:
    """Return the findings in their order, wrapped; if there are none, a line that says so.

    ``known``: the number of findings that are left out because a baseline has them.
    """
    left_out = f"; {known} known left out" * (known > 0)
    sources = ", ".join(topology.sources) or "no source"
    if not findings:
        gpus, nics = len(topology.gpus), len(topology.nics)
        what = f"{format_count(gpus, 'GPU')}, {format_count(nics, 'NIC')}"
        lost = "".join(f"; {gap.subject}: {gap.reason}" for gap in topology.lost)
        return make_lines_printable(
            f"no findings: {what}, as far as {sources} can tell{left_out}{lost}\n"
        )
    lines = [f"{format_count(len(findings), 'finding')}, worst first, from {sources}{left_out}", ""]
    for place, finding in enumerate(findings, 1):
        lines += wrap_line(
            f"{place}. {finding.summary}  [{finding.code}]", width, len(f"{place}. ")
        )
        for head, body in (
            ("on", ", ".join(finding.subjects)),
            ("evidence", finding.evidence),
            ("remedy", finding.remedy),
        ):
            if body:
                lines += wrap_line(f"   {head + ':':10}{body}", width, 13)
        lines.append("")
    return make_lines_printable("\n".join(lines[:-1]) + "\n")
