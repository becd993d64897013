"""The textbook's comparison: parameter server and ring over ranks P and size n, measured and predicted.

A parameter server's port carries 2n(P−1) bytes, which grows with P; a ring rank's 2n(P−1)/P each way,
which hardly does (Patarasuk, Yuan 2009). The same is counted from the schedules, and a line
with these shapes and one rate is put through what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collectives.catalogue import draft, spec
from collectives.cost import cost
from reports.errors import ReportError
from reports.readers.rows import Row

__all__ = ["ALGORITHMS", "VOLUMES", "Cell", "Comparison", "Predict", "compare"]

ALGORITHMS = ("ps", "ring")
#: Bytes through the busiest port in units of n, by the textbook, from P.
VOLUMES: Mapping[str, Callable[[int], float]] = {
    "ps": lambda p: 2.0 * (p - 1),
    "ring": lambda p: 2.0 * (p - 1) / p,
}
Predict = Callable[[str, int, Sequence[int]], Sequence[float | None]]


@dataclass(frozen=True)
class Cell:
    """One algorithm, rank count and size; seconds, None where unknown. ``low``, ``high``: 95 %.

    ``textbook``: the time of its volume at one rate for all, the median of the algorithm's own.
    """

    algorithm: str
    ranks: int
    size: int
    volume: float
    counted: float
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    predicted: float | None = None
    textbook: float | None = None


@dataclass(frozen=True)
class Comparison:
    """All cells, and the rate (bytes per second) of each algorithm's textbook line, where measured."""

    cells: tuple[Cell, ...]
    rates: Mapping[str, float]

    def of(
        self, algorithm: str, *, ranks: int | None = None, size: int | None = None
    ) -> list[Cell]:
        """Cells of an algorithm, of one rank count or size if given, by ranks and size."""
        return sorted(
            (
                c
                for c in self.cells
                if c.algorithm == algorithm and ranks in (None, c.ranks) and size in (None, c.size)
            ),
            key=lambda c: (c.ranks, c.size),
        )

    def growth(self, cell: Cell) -> tuple[float | None, float | None]:
        """How many times the time of the fewest ranks at this size it takes: measured, by volume."""
        first = self.of(cell.algorithm, size=cell.size)[0]
        by_volume = cell.volume / first.volume if first.volume else None
        if not cell.measured or not first.measured:
            return None, by_volume
        return cell.measured / first.measured, by_volume


def compare(
    rows: Sequence[Row], ranks: Sequence[int], sizes: Sequence[int], predict: Predict
) -> Comparison:
    """The comparison for what was measured (all-reduce by ps and ring) and the ranks and sizes given.

    ``predict(algorithm, ranks, sizes)`` gives seconds. Where rows have both placements the one out of
    place counts. Raises ReportError where there is neither a row of these nor a rank count.
    """
    measured = _measured(rows)
    if rows and not measured:
        raise ReportError(
            "no all-reduce by ps or ring in it; run python -m bench.allreduce -A ps,ring"
        )
    counts = sorted({*ranks, *(key[1] for key in measured)})
    every = sorted({*sizes, *(key[2] for key in measured)})
    if not counts or not every:
        raise ReportError("nothing to compare: give a RUN, or -n RANKS")
    rates = {name: _rate(name, measured) for name in ALGORITHMS}
    cells = []
    for name in ALGORITHMS:
        for p in counts:
            counted = _counted(name, p)
            for size, time in zip(every, predict(name, p, every), strict=True):
                row = measured.get((name, p, size))
                if row is None and rows and p not in ranks:
                    continue
                volume, rate = VOLUMES[name](p), rates[name]
                cells.append(
                    Cell(
                        name,
                        p,
                        size,
                        volume,
                        counted,
                        None if row is None else row.time_s,
                        None if row is None else row.low_s,
                        None if row is None else row.high_s,
                        time,
                        volume * size / rate if rate else None,
                    )
                )
    return Comparison(tuple(cells), {name: rate for name, rate in rates.items() if rate})


def _measured(rows: Sequence[Row]) -> dict[tuple[str, int, int], Row]:
    found: dict[tuple[str, int, int], Row] = {}
    for row in rows:
        if row.collective == "allreduce" and row.algorithm in ALGORITHMS and row.time_s:
            if not row.ranks or row.ranks < 2 or not row.size:
                continue
            key = (row.algorithm, row.ranks, row.size)
            if key not in found or (row.placement == "out" != found[key].placement):
                found[key] = row
    return found


def _rate(name: str, measured: Mapping[tuple[str, int, int], Row]) -> float | None:
    """The median of volume over time (bytes per second) over the larger half of the sizes.

    Latency is no part of the textbook's volumes, so small sizes would say nothing of them.
    """
    mine = [(p, size, row) for (one, p, size), row in measured.items() if one == name]
    if not mine:
        return None
    middle = float(np.median([size for _, size, _ in mine]))
    rates = [VOLUMES[name](p) * size / (r.time_s or 1.0) for p, size, r in mine if size >= middle]
    return float(np.median(rates))


def _counted(name: str, ranks: int) -> float:
    """What the schedule itself carries through its busiest port, in units of n.

    For the parameter server both ways together, for a ring each way, as in the textbook.
    """
    found = cost(draft("allreduce", name, ranks), spec("allreduce"))
    return found.out + found.into if name == "ps" else max(found.out, found.into)
