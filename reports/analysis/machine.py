"""The machine that a run was measured on; the only module of reports that uses ``topology``.

Maps are read, checked and laid out by ``topology``; this module only calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.errors import ReportError
from reports.analysis.stragglers_matrix import Cell, Pairs

if TYPE_CHECKING:
    from topology.diagnostics.finding import Finding
    from topology.model.topology import Topology
    from topology.views.layout import Drawing
    from topology.views.picture import Shapes

#: Title, unit, factor from the inner unit, by measured quantity.
_SHOWN = {
    "latency": ("Latency between ranks, one way", "us", 1e6),
    "bandwidth": ("Bandwidth between ranks, row to column", "GB/s", 1e-9),
    "bandwidth_both": ("Bandwidth between ranks, both ways at once, sum", "GB/s", 1e-9),
}


@dataclass(frozen=True)
class MeasuredMatrix:
    """A measured P x P matrix in ``unit``: medians with their intervals, None where unmeasured.

    ``slow``: (row, column) of pairs that are worse than their class by more than the noise.
    """

    name: str
    title: str
    unit: str
    more_is_better: bool
    ids: tuple[str, ...]
    cells: tuple[tuple[tuple[float, float, float] | None, ...], ...]
    slow: frozenset[tuple[int, int]]


@dataclass(frozen=True)
class MachinePart:
    """``drawing`` and ``shapes`` are None where there is nothing to draw but a host."""

    sources: tuple[str, ...]
    drawing: Drawing | None
    shapes: Shapes | None
    findings: tuple[Finding, ...]
    matrices: tuple[MeasuredMatrix, ...]
    pairs: tuple[Pairs, ...] = ()


def read_machine(files: Sequence[Path]) -> MachinePart:
    """The map in these files: any format that ``topology`` reads, or measured matrices.

    Raises ReportError naming the file that cannot be read.
    """
    from topology.diagnostics.findings import check
    from topology.views.layout import draw
    from topology.views.picture import shapes

    topology = _gathered(files)
    drawing = draw(topology)
    found, matrices, pairs = check(topology), _matrices(topology), tuple(_pairs(topology))
    if len(drawing.nodes) < 2:
        return MachinePart(topology.sources, None, None, found, matrices, pairs)
    return MachinePart(topology.sources, drawing, shapes(drawing), found, matrices, pairs)


def _gathered(files: Sequence[Path]) -> Topology:
    from busbar.errors import ProbeError
    from topology.sources.gather import gather

    try:
        return gather([str(file) for file in files])[0]
    except ProbeError as error:
        raise ReportError(str(error)) from None


def _matrices(topology: Topology) -> tuple[MeasuredMatrix, ...]:
    from topology.measured.matrix import QUANTITIES, ends, matrix, slow

    found = []
    for name, more_is_better in QUANTITIES.items():
        cells = matrix(topology, name)
        if not cells:
            continue
        title, unit, factor = _SHOWN[name]
        ids = ends(topology, cells)
        shown = {at: (c.value * factor, c.low * factor, c.high * factor) for at, c in cells.items()}
        rows = tuple(tuple(shown.get((a, b)) for b in ids) for a in ids)
        at = {id: n for n, id in enumerate(ids)}
        worse = frozenset((at[s.a], at[s.b]) for s in slow(topology, cells, more_is_better))
        found.append(MeasuredMatrix(name, title, unit, more_is_better, ids, rows, worse))
    return tuple(found)


def read_pairs(file: Path) -> list[Pairs]:
    """The measured quantities between ranks, or GPUs, of a file: `topology measure -o`, or a log.

    Raises ReportError naming the file when it cannot be read or holds no measured matrix.
    """
    found = _pairs(_gathered([file]))
    if not found:
        reason = "no measured matrix; make one with mpirun -n 4 python -m topology measure -o FILE"
        raise ReportError(f"{file}: {reason}")
    return found


def _pairs(topology: Topology) -> list[Pairs]:
    """The measured quantities as they are looked at for what is slow."""
    from topology.measured.matrix import QUANTITIES, ends, kind_of_pair, matrix
    from topology.model.topology import Kind

    found = []
    for name, more_is_better in QUANTITIES.items():
        cells = matrix(topology, name)
        ids = ends(topology, cells)
        if len(ids) < 2:
            continue
        at = {id: n for n, id in enumerate(ids)}
        hosts = [topology.ancestor(id, Kind.HOST) for id in ids]
        directed = name == "bandwidth"  # of the others both ways are one measurement
        made = {
            (at[a], at[b]): Cell(c.value, c.low, c.high, kind_of_pair(topology, a, b))
            for (a, b), c in cells.items()
            if a != b and c.value > 0 and (directed or at[a] < at[b])
        }
        nodes = tuple("" if h is None else h.name or h.id for h in hosts)
        found.append(Pairs(name, more_is_better, directed, ids, nodes, made))
    return found
