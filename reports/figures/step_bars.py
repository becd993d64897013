"""Figures of synchronous steps: compute and exposed communication, and scaling over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from reports.analysis.step_figures import StepFigures, figures
from reports.figures.canvas import LEGEND, QUIET, canvas, faint_grid, ranks_axis, saved
from reports.figures.series import COLOURS
from reports.records.record import Result
from reports.records.shown import seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COMPUTE, _EXPOSED = "#0072B2", "#D55E00"
_MOST = 40
_Steps = list[tuple[Result, StepFigures]]


def bars(steps: Sequence[Result], form: str) -> bytes | None:
    """PNG, SVG or PDF: a row a model, bars of its updates and efficiency over ranks.

    None where no record has compute that was measured without exchange. Raises MissingLibrary
    without matplotlib.
    """
    found = [(one, f) for one in steps if (f := figures(one)) is not None and f.compute]
    if not found:
        return None
    found.sort(key=lambda pair: pair[0].collective)
    groups = [list(group) for _, group in groupby(found, key=lambda pair: pair[0].collective)]
    several = any(len({one.ranks for one, _ in group}) > 1 for group in groups)
    high = sum(1.2 + 0.28 * min(_MOST, len(group)) for group in groups)
    figure = canvas(13 if several else 8, max(3.0, high))
    panels = figure.subplots(len(groups), 2 if several else 1, squeeze=False)
    for row, group in zip(panels, groups, strict=True):
        _stacked(row[0], group[:_MOST])
        row[0].set_title(group[0][0].collective, fontsize=10)
        if several:
            _efficiency(row[1], group)
    return saved(figure, form)


def _stacked(axes: Axes, group: _Steps) -> None:
    """A bar an update: compute, then exposed exchange; a stroke where the model expects its end."""
    names = [f"{one.algorithm}, {one.ranks} ranks" for one, _ in group]
    compute = [1e3 * min(f.compute or 0.0, f.step.value) for _, f in group]
    exposed = [1e3 * f.step.value - c for (_, f), c in zip(group, compute, strict=True)]
    places = range(len(group))
    axes.barh(places, compute, color=_COMPUTE, label="compute")
    axes.barh(places, exposed, left=compute, color=_EXPOSED, label="exposed exchange")
    wide = max(1e3 * f.step.value for _, f in group)
    labelled = False
    for place, (_, f) in zip(places, group, strict=True):
        step = f.step.value
        axes.text(1e3 * step + 0.01 * wide, place, seconds(step), va="center", fontsize=7)
        if f.predicted is not None:
            x, label = 1e3 * f.predicted, None if labelled else "predicted"
            axes.plot([x, x], [place - 0.45, place + 0.45], color=QUIET, lw=1.6, label=label)
            labelled = True
    axes.set_yticks(places, names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * wide)
    axes.set_xlabel("step (ms)")
    axes.legend(**LEGEND)


def _efficiency(axes: Axes, group: _Steps) -> None:
    """Samples/s over P times one rank's, where one rank was measured."""
    names = dict.fromkeys(one.algorithm for one, _ in group)
    drawn = False
    for n, name in enumerate(names):
        rates = {one.ranks: f.rate.value for one, f in group if one.algorithm == name}
        if 1 not in rates:
            continue
        points = [(p, 100 * rate / p / rates[1]) for p, rate in sorted(rates.items())]
        colour = COLOURS[n % len(COLOURS)]
        axes.plot(*zip(*points, strict=True), "o-", color=colour, label=name, ms=4, lw=1.4)
        drawn = True
    if not drawn:
        axes.set_axis_off()
        return
    ranks_axis(axes, (one.ranks for one, _ in group))
    axes.set_ylim(0, None)
    axes.set_ylabel("efficiency (% of as many times one rank)")
    faint_grid(axes)
    axes.legend(**LEGEND)
