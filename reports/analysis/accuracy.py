"""How far predictions are from measurements unseen by the fit, by algorithm and size decade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, log10
from typing import TYPE_CHECKING

import numpy as np

from busbar.cells import csv_text
from reports.records.rows import Row

if TYPE_CHECKING:
    from rich.table import Table

#: The decade that stands for all sizes, and the algorithm that stands for all.
ALL = ""
_COLUMNS = (
    "collective", "algorithm", "transport", "ranks", "size", "placement", "measured_s",
    "predicted_s", "error",
)  # fmt: skip


@dataclass(frozen=True)
class AccuracyPoint:
    """A measured row with its prediction; seconds."""

    row: Row
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative error: predicted over measured, less one, without its sign."""
        return abs(self.predicted / self.measured - 1)


@dataclass(frozen=True)
class Error:
    """Rows of one algorithm and decade: how many, median and 95th percentile of the relative error.

    ``ratio``: the median of predicted over measured, which says to which side.
    """

    rows: int
    median: float
    p95: float
    ratio: float


def pooled(rows: Sequence[Row]) -> list[Row]:
    """Rows that measured the same again, in other runs say, as one: the median of all iterations.

    Rows without raw times count as their own median.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for r in rows:
        key = (r.collective, r.algorithm, r.transport, r.ranks, r.size, r.dtype, r.op, r.root)
        groups.setdefault((*key, r.placement), []).append(r)
    found = []
    for same in groups.values():
        times = [t for r in same for t in (r.times_s or (r.time_s or 0.0,))]
        found.append(
            same[0] if len(same) == 1 else replace(same[0], time_s=float(np.median(times)))
        )
    return found


def _decade(size: int) -> str:
    """``1e4`` for 10000 to 99999 bytes; barriers, which move nothing, have 0."""
    return f"1e{floor(log10(size))}" if size > 0 else "0"


def _names(rows: Sequence[Row]) -> list[str]:
    """The algorithms, with the collective and the ranks where those differ among the rows."""
    several = len({row.collective for row in rows}) > 1
    ranks = len({row.ranks for row in rows}) > 1
    return [
        (f"{row.collective} " if several else "")
        + row.algorithm
        + (f" x{row.ranks}" if ranks else "")
        for row in rows
    ]


def errors(points: Sequence[AccuracyPoint]) -> dict[tuple[str, str], Error]:
    """By (algorithm, decade), with `ALL` for either; in the order of names and of sizes."""
    groups: dict[tuple[str, str], list[AccuracyPoint]] = {}
    for point, own in zip(points, _names([point.row for point in points]), strict=True):
        for name in (own, ALL):
            for decade in (_decade(point.row.size or 0), ALL):
                groups.setdefault((name, decade), []).append(point)
    order = sorted(groups, key=lambda key: (key[0] == ALL, key[0], key[1] == ALL, _value(key[1])))
    return {key: _error(groups[key]) for key in order}


def _value(decade: str) -> float:
    return float(decade) if decade else 0.0


def _error(points: Sequence[AccuracyPoint]) -> Error:
    found = np.array([point.error for point in points])
    ratios = [point.predicted / point.measured for point in points]
    median, p95 = np.percentile(found, [50, 95])
    return Error(len(points), float(median), float(p95), float(np.median(ratios)))


def _axes(found: Mapping[tuple[str, str], Error]) -> tuple[list[str], list[str]]:
    names = list(dict.fromkeys(name for name, _ in found if name != ALL))
    decades = sorted({decade for _, decade in found if decade != ALL}, key=_value)
    return [*names, ALL], [*decades, ALL]


def _cells(found: Mapping[tuple[str, str], Error], name: str, decades: Sequence[str]) -> list[str]:
    """Median/p95 in per cent for each decade."""
    cells = []
    for decade in decades:
        error = found.get((name, decade))
        cells.append("" if error is None else f"{_percent(error.median)}/{_percent(error.p95)}")
    return cells


def _percent(value: float) -> str:
    return f"{100 * value:.0f}" if value < 99.995 else "huge"


def table(
    found: Mapping[tuple[str, str], Error], width: int, ascii_only: bool = False
) -> list[Table]:
    """A row an algorithm, a column a decade: median/p95 relative error in per cent.

    As many tables as it takes for columns to fit ``width``; the last column is of all sizes, with
    the number of rows and the median of predicted over measured.
    """
    names, decades = _axes(found)
    heads = [*decades[:-1], "all", "rows", "ratio"]
    room = max(1, (width - max(map(len, names)) - 1) // 9)
    parts = [heads[i : i + room] for i in range(0, len(heads), room)]
    return [_part(found, names, part, ascii_only) for part in parts]


def _part(
    found: Mapping[tuple[str, str], Error],
    names: Sequence[str],
    heads: Sequence[str],
    ascii_only: bool,
) -> Table:
    from rich import box
    from rich.table import Table

    one = Table(box=box.ASCII if ascii_only else box.SIMPLE_HEAD, pad_edge=False)
    one.add_column("algorithm", no_wrap=True)
    for head in heads:
        one.add_column(head, justify="right", no_wrap=True)
    for name in names:
        total = found[name, ALL]
        last = {"all": _cells(found, name, [ALL])[0], "rows": str(total.rows)}
        last["ratio"] = f"{total.ratio:.2f}"
        if name == ALL:
            one.add_section()
        cells = [last[head] if head in last else _cells(found, name, [head])[0] for head in heads]
        one.add_row(name or "all", *cells)
    return one


def as_markdown(found: Mapping[tuple[str, str], Error]) -> str:
    """The same as one Markdown table."""
    names, decades = _axes(found)
    heads = ["algorithm", *(d or "all" for d in decades), "rows", "ratio"]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    for name in names:
        total = found[name, ALL]
        cells = [*_cells(found, name, decades), str(total.rows), f"{total.ratio:.2f}"]
        lines.append("| " + " | ".join([name or "**all**", *cells]) + " |")
    return "\n".join(lines) + "\n"


def as_csv(points: Sequence[AccuracyPoint]) -> str:
    """Every row with its prediction and error."""
    lines: list[tuple[object, ...]] = [_COLUMNS]
    for p in points:
        r = p.row
        words = (r.collective, r.algorithm, r.transport, r.ranks, r.size, r.placement)
        lines.append((*words, p.measured, p.predicted, p.error))
    return csv_text(lines)
