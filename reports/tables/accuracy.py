"""The relative error of predictions, by algorithm and decade of the size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from busbar.tables import GAP, Column, render_csv, render_markdown, render_rich, split_columns
from reports.analysis.compare import by_key, samples
from reports.records.measurement import Measurement

if TYPE_CHECKING:
    from rich.table import Table

#: As a decade: all sizes together; as an algorithm: all algorithms together.
ALL = ""
_COLUMNS = (
    "collective", "algorithm", "transport", "ranks", "size", "placement", "measured_s",
    "predicted_s", "error",
)  # fmt: skip


@dataclass(frozen=True)
class AccuracyPoint:
    """A measured row with its prediction; seconds."""

    row: Measurement
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative error: |predicted / measured - 1|."""
        return abs(self.predicted / self.measured - 1)


@dataclass(frozen=True)
class Error:
    """Relative errors in one algorithm and decade: number of rows, median and 95th percentile.

    ``ratio``: the median of predicted over measured; above 1, predictions are too long.
    """

    rows: int
    median: float
    p95: float
    ratio: float


def pooled(rows: Sequence[Measurement]) -> list[Measurement]:
    """Merge rows with the same settings, for example of several runs: the median of all iterations.

    Rows without raw times count with their own time.
    """
    groups = by_key(rows).values()
    return [same[0] if len(same) == 1 else _pooled(same) for same in groups]


def _pooled(same: Sequence[Measurement]) -> Measurement:
    times = [time for run in samples(same) for time in run]
    return replace(same[0], time_s=float(np.median(times)))


def _decade(size: int) -> str:
    """The decade of a size: ``1e4`` for 10000 to 99999 bytes, ``0`` for none (barriers)."""
    return f"1e{floor(log10(size))}" if size > 0 else "0"


def _names(rows: Sequence[Measurement]) -> list[str]:
    """A name for each row: the algorithm, with collective and ranks if rows differ in these."""
    several = len({row.collective for row in rows}) > 1
    ranks = len({row.ranks for row in rows}) > 1
    return [
        (f"{row.collective} " if several else "")
        + row.algorithm
        + (f" x{row.ranks}" if ranks else "")
        for row in rows
    ]


def errors(points: Sequence[AccuracyPoint]) -> dict[tuple[str, str], Error]:
    """Errors by (algorithm, decade), and with `ALL` for either; sorted by name, then by size."""
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
    errors_ = np.array([point.error for point in points])
    ratios = [point.predicted / point.measured for point in points]
    median, p95 = np.percentile(errors_, [50, 95])
    return Error(len(points), float(median), float(p95), float(np.median(ratios)))


def _grid(by_group: Mapping[tuple[str, str], Error]) -> tuple[list[str], list[list[str]]]:
    """Column heads, and one line per algorithm: median/p95 of each decade in per cent.

    The last columns are for all sizes, the number of rows, and the median of predicted over
    measured. The last line is for all algorithms.
    """
    decades = sorted({decade for _, decade in by_group}, key=lambda d: (d == ALL, _value(d)))
    lines = []
    for name in dict.fromkeys(name for name, _ in by_group):
        total, own = by_group[name, ALL], (by_group.get((name, decade)) for decade in decades)
        cells = [f"{_percent(e.median)}/{_percent(e.p95)}" if e else "" for e in own]
        lines.append([name, *cells, str(total.rows), f"{total.ratio:.2f}"])
    return ["algorithm", *(d or "all" for d in decades), "rows", "ratio"], lines


def _percent(value: float) -> str:
    return f"{100 * value:.0f}" if value < 99.995 else "huge"


def tables(by_group: Mapping[tuple[str, str], Error], width: int) -> list[Table]:
    """`_grid` as tables; columns that do not fit into ``width`` go to further tables."""
    heads, lines = _grid(by_group)
    names = [name or "all" for name, *_ in lines]
    columns: list[Column] = [
        (head, "right", [line[n] for line in lines]) for n, head in enumerate(heads)
    ]
    wide = [max(map(len, (head, *cells))) + GAP for head, _, cells in columns]
    room = width - max(map(len, ("algorithm", *names))) - 2 * GAP
    blocks = []
    for block in split_columns(dict(enumerate(wide[1:], 1)), room):
        one = render_rich("", [("algorithm", "left", names), *(columns[n] for n in block)]).table
        one.rows[len(names) - 2].end_section = True
        blocks.append(one)
    return blocks


def as_markdown(by_group: Mapping[tuple[str, str], Error]) -> str:
    """`_grid` as one Markdown table."""
    heads, lines = _grid(by_group)
    rows = [[name or "**all**", *cells] for name, *cells in lines]
    columns = [(head, "right" if n else "left") for n, head in enumerate(heads)]
    return "\n".join(render_markdown(columns, rows, right="--:")) + "\n"


def as_csv(points: Sequence[AccuracyPoint]) -> str:
    """Every row with its prediction and error, as CSV."""
    lines: list[tuple[object, ...]] = [_COLUMNS]
    for p in points:
        r = p.row
        words = (r.collective, r.algorithm, r.transport, r.ranks, r.size, r.placement)
        lines.append((*words, p.measured, p.predicted, p.error))
    return render_csv(lines)
