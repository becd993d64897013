"""The map of the machine that a run was measured on.

Only this module of reports uses ``topology``, which reads, checks and lays out the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from busbar.errors import ReportError
from reports.analysis.stragglers import Cell, Pairs

if TYPE_CHECKING:
    from topology.diagnostics import Finding
    from topology.model.topology import Topology
    from topology.views.picture import Drawing, Shapes

#: Title, unit, and factor from seconds or bytes/s to that unit, by measured quantity.
_SHOWN = {
    "latency": ("Latency between ranks, one way", "us", 1e6),
    "bandwidth": ("Bandwidth between ranks, row to column", "GB/s", 1e-9),
    "bandwidth_both": ("Bandwidth between ranks, both ways at once, sum", "GB/s", 1e-9),
}


class MatrixShown(NamedTuple):
    """A measured P x P matrix in ``unit``: (median, low, high), or None for a pair not measured."""

    title: str
    unit: str
    cells: list[list[tuple[float, float, float] | None]]


def shown(pairs: Pairs) -> MatrixShown:
    """A measured quantity as a matrix to print, from the row's rank to the column's."""
    title, unit, factor = _SHOWN[pairs.name]
    views = {
        at: (c.value * factor, c.low * factor, c.high * factor) for at, c in pairs.cells.items()
    }
    ends = range(len(pairs.ids))
    return MatrixShown(title, unit, [[views.get((a, b)) for b in ends] for a in ends])


@dataclass(frozen=True)
class MachinePart:
    """What a page shows of a machine. ``drawing`` and ``shapes``: None for fewer than two nodes."""

    sources: tuple[str, ...]
    drawing: Drawing | None
    shapes: Shapes | None
    findings: tuple[Finding, ...]
    matrices: tuple[Pairs, ...]


def read_machine(files: Sequence[Path]) -> MachinePart:
    """Read the map in these files: any format that ``topology`` reads, or measured matrices.

    Raises MissingFile or ProbeError naming the file that cannot be read.
    """
    from topology.diagnostics import check
    from topology.sources.gather import gather
    from topology.views.picture import draw, shapes

    topology = gather([str(file) for file in files])[0]
    drawing = draw(topology)
    findings, matrices = check(topology), tuple(_pairs(topology))
    if len(drawing.nodes) < 2:
        return MachinePart(topology.sources, None, None, findings, matrices)
    return MachinePart(topology.sources, drawing, shapes(drawing), findings, matrices)


def read_pairs(file: Path) -> list[Pairs]:
    """Read the matrices between ranks, or GPUs, in a file of `topology measure -o` or a log.

    Raises ProbeError if the file cannot be read, ReportError if it has no measured matrix; both
    name the file.
    """
    from topology.sources.gather import gather

    matrices = _pairs(gather([str(file)])[0])
    if not matrices:
        reason = "no measured matrix; make one with mpirun -n 4 busbar topology measure -o FILE"
        raise ReportError(f"{file}: {reason}")
    return matrices


def _pairs(topology: Topology) -> list[Pairs]:
    """The matrices of all measured quantities in a map."""
    from topology.model.measured import QUANTITIES, ends, kind_of_pair, matrix, slow
    from topology.model.topology import Kind

    matrices = []
    for name, more_is_better in QUANTITIES.items():
        cells = matrix(topology, name)
        if not cells:
            continue
        ids = ends(topology, cells)
        at = {id: n for n, id in enumerate(ids)}
        hosts = [topology.ancestor(id, Kind.HOST) for id in ids]
        nodes = tuple("" if h is None else h.name or h.id for h in hosts)
        values = {
            (at[a], at[b]): Cell(c.value, c.low, c.high, kind_of_pair(topology, a, b))
            for (a, b), c in cells.items()
        }
        directed = name == "bandwidth"  # for other quantities both directions are one measurement
        worse = frozenset((at[s.a], at[s.b]) for s in slow(topology, cells, more_is_better))
        beside = topology.disturbance
        matrices.append(Pairs(name, more_is_better, directed, ids, nodes, values, worse, beside))
    return matrices
