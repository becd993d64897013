"""The map of the machine that a run was measured on.

Only this module of reports reads, checks and lays out the map, which ``topology`` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from busbar.errors import ReportError
from topology.model.slow_units import Pairs, matrices

if TYPE_CHECKING:
    from topology.diagnostics import Finding
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

    Raises MissingFile, or ProbeError naming the file that cannot be read.
    """
    from topology.diagnostics import check
    from topology.sources.gather import gather
    from topology.views.picture import draw, shapes

    topology = gather([str(file) for file in files])[0]
    drawing = draw(topology)
    findings, measured = check(topology), tuple(matrices(topology))
    if len(drawing.nodes) < 2:
        return MachinePart(topology.sources, None, None, findings, measured)
    return MachinePart(topology.sources, drawing, shapes(drawing), findings, measured)


def read_pairs(file: Path) -> list[Pairs]:
    """Read the matrices between ranks, or GPUs, in a file of `topology measure -o` or a log.

    Raises ProbeError if the file cannot be read, ReportError if it has no measured matrix; both
    name the file.
    """
    from topology.sources.gather import gather

    measured = matrices(gather([str(file)])[0])
    if not measured:
        reason = "no measured matrix; make one with mpirun -n 4 busbar topology measure -o FILE"
        raise ReportError(f"{file}: {reason}")
    return measured
