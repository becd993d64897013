"""When rows became steady: a verdict for each row, and graphs of time against iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from busbar.canvas import canvas, faint_grid
from busbar.files import encode_figure
from busbar.units import format_count, format_size
from reports.records.measurement import Measurement
from reports.statistics.steady import Steady, steady

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Most panels in a figure; further rows go to the next figure.
PANELS = 12
_COLUMNS = 3
_MOST_POINTS = 5000
_WIDE = 20


@dataclass(frozen=True)
class Settling:
    """All iterations of a row in order, with the discarded warm-up first, and the verdict."""

    title: str
    times: tuple[float, ...]
    left_out: int
    verdict: Steady


def settlings(rows: Sequence[Measurement]) -> list[Settling]:
    """The verdict on every row with at least two iterations."""
    verdicts = []
    for r in rows:
        if len(r.times_s) > 1:
            placement = " in place" if r.placement == "in" else ""
            what = f"{r.collective} {r.algorithm} {r.transport} {format_count(r.ranks, 'rank')}"
            title, times = f"{what} {format_size(r.size)}{placement}", r.warm_up_s + r.times_s
            verdicts.append(Settling(title, times, len(r.warm_up_s), steady(times)))
    return verdicts


def drawn(rows: Sequence[Settling], form: str = "png") -> bytes:
    """Draw one figure of at most `PANELS` rows. Raises MissingLibrary without matplotlib."""
    columns = min(_COLUMNS, len(rows))
    lines = -(-len(rows) // columns)
    figure = canvas(4.6 * columns, 3.0 * lines)
    axes = figure.subplots(lines, columns, squeeze=False).flat
    for one, place in zip(rows, axes, strict=False):
        _panel(place, one)
    for place in list(axes)[len(rows) :]:
        place.set_visible(False)
    return encode_figure(figure, form, dpi=110)


def _panel(axes: Axes, one: Settling) -> None:
    step = -(-len(one.times) // _MOST_POINTS)
    at = np.arange(0, len(one.times), step)
    times = np.asarray(one.times)[at] * 1e6
    axes.plot(at, times, ".", markersize=2.5, color="#0072B2", alpha=0.6)
    for change in one.verdict.changes:
        axes.axvline(change, color="#D55E00", linewidth=0.9, linestyle=":")
    if one.left_out:
        axes.axvspan(0, one.left_out, color="#999999", alpha=0.3, linewidth=0)
    if one.verdict.verdict not in ("never", "few"):
        rest = float(np.median(one.times[one.verdict.start :])) * 1e6
        axes.hlines(rest, one.verdict.start, len(one.times), color="black", linewidth=1)
    if times.min() > 0 and times.max() > _WIDE * times.min():
        axes.set_yscale("log")
    axes.set_title(f"{one.title}\n{one.verdict}", fontsize=8)
    axes.set_xlabel("iteration", fontsize=8)
    axes.set_ylabel("time (us)", fontsize=8)
    axes.tick_params(labelsize=7)
    faint_grid(axes)
