"""The machine that a run was measured on, as reports shows it: the one door to ``topology``.

Everything that says where data moves is read, checked and laid out over there; this file only asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reports.errors import ReportError

if TYPE_CHECKING:
    from topology.finding import Finding
    from topology.model import Topology
    from topology.views.layout import Drawing

__all__ = ["Machine", "Matrix", "read_machine"]

#: Title, unit, factor from the inner unit, by measured quantity.
_SHOWN = {
    "latency": ("Latency between ranks, one way", "us", 1e6),
    "bandwidth": ("Bandwidth between ranks, row to column", "GB/s", 1e-9),
    "bandwidth_both": ("Bandwidth between ranks, both ways at once, sum", "GB/s", 1e-9),
}


@dataclass(frozen=True)
class Matrix:
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
class Machine:
    """``drawing`` is None where there is nothing to draw but a host."""

    sources: tuple[str, ...]
    drawing: Drawing | None
    findings: tuple[Finding, ...]
    matrices: tuple[Matrix, ...]


def read_machine(files: Sequence[Path]) -> Machine:
    """What ``topology`` knows from these files: maps of any format it reads, measured matrices.

    Raises ReportError naming the file that cannot be read.
    """
    from topology.errors import ProbeError
    from topology.findings import check
    from topology.gather import gather
    from topology.views.layout import draw

    try:
        topology, _ = gather([str(file) for file in files])
    except ProbeError as error:
        raise ReportError(str(error)) from None
    drawing = draw(topology)
    shown = drawing if len(drawing.nodes) > 1 else None
    return Machine(topology.sources, shown, check(topology), _matrices(topology))


def _matrices(topology: Topology) -> tuple[Matrix, ...]:
    from topology.measure import QUANTITIES, matrix, slow

    found = []
    for name, more_is_better in QUANTITIES.items():
        cells = matrix(topology, name)
        if not cells:
            continue
        title, unit, factor = _SHOWN[name]
        inside = {id for pair in cells for id in pair}
        ids = tuple(d.id for d in topology.devices if d.id in inside)
        rows = tuple(
            tuple(
                None
                if (cell := cells.get((a, b))) is None
                else (cell.value * factor, cell.low * factor, cell.high * factor)
                for b in ids
            )
            for a in ids
        )
        at = {id: n for n, id in enumerate(ids)}
        worse = frozenset((at[s.a], at[s.b]) for s in slow(topology, cells, more_is_better))
        found.append(Matrix(name, title, unit, more_is_better, ids, rows, worse))
    return tuple(found)
