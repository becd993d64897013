"""The matrix as ``nvidia-smi topo -m`` prints it, and as CSV."""

from __future__ import annotations

from busbar.tables import render_csv
from busbar.terminal import make_printable
from topology.exports.cpus import affinity
from topology.model.topology import Device, Kind, Topology

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


def text(topology: Topology, underline: bool = False) -> str:
    """Return the matrix with its legends: tabs between cells, as nvidia-smi does.

    ``underline`` wraps the header in the terminal codes that nvidia-smi always writes. A cell that
    no source knows is ``?``, which the legend then explains. Empty map: the legend of nothing, "".
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
            # nvidia-smi has one tab too many before the last column, and NICs have it empty.
            tail.insert(2, "")
        lines.append("\t".join(map(make_printable, [end.id, *shown, *tail])))
    legend = _LEGEND
    if any("?" in row for row in cells):
        legend += "  ?    = No source says\n"
    return "\n".join(lines) + "\n" + legend + _nic_legend(topology)


def as_csv(topology: Topology) -> str:
    """Return the matrix as CSV: a header, then a row a device; RFC 4180 quoting, no formulas."""
    columns, ends = _columns(topology), topology.endpoints
    lines = [["", *(end.id for end in ends), *columns]]
    for end, row in zip(ends, topology.matrix(), strict=True):
        lines.append([end.id, *row, *_tail(topology, end, columns)])
    return render_csv(map(make_printable, line) for line in lines)


def _columns(topology: Topology) -> list[str]:
    """The affinity columns that the map can fill; GPU NUMA ID stands beside NUMA Affinity."""
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
