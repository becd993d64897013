"""Figures of training steps: time per update over K, loss over time, loss over updates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from busbar.errors import ReportError
from reports.analysis.steps import StepSummary
from reports.figures.canvas import LEGEND, canvas, faint_grid, saved
from reports.figures.series import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FAMILIES = ("k-sync", "k-batch-sync", "k-async", "k-batch-async")
_MARKERS = "osD^vPX*"
_DASHES = ("-", "--", ":", "-.")
#: Values that differ by more than this factor are drawn logarithmically.
_WIDE = 8


def picture(steps: Sequence[StepSummary], form: str) -> bytes:
    """PNG, SVG or PDF: a row of panels for each title, those that there is something for.

    Raises ReportError where there is nothing, MissingLibrary without matplotlib.
    """
    if not steps:
        raise ReportError("no record of training steps has times; nothing to draw")
    ordered = sorted(steps, key=lambda one: one.title)
    groups = [list(group) for _, group in groupby(ordered, key=lambda one: one.title)]
    curves = any(one.loss for one in steps)
    figure = canvas(16 if curves else 6.4, 4.8 * len(groups))
    rows = figure.subplots(len(groups), 3 if curves else 1, squeeze=False)
    for panels, group in zip(rows, groups, strict=True):
        _per_update(panels[0], group)
        for axes, along in zip(panels[1:], ("seconds", "updates"), strict=False):
            _losses(axes, group, along)
        for axes in panels:
            faint_grid(axes)
            axes.set_title(group[0].title, fontsize=9)
    return saved(figure, form)


def _per_update(axes: Axes, group: Sequence[StepSummary]) -> None:
    """Time per update over K; where all gradients are waited for, at K = P."""
    for place, family in enumerate(_FAMILIES):
        own = sorted((one for one in group if one.family == family), key=lambda one: one.k)
        style: dict[str, Any] = {"color": COLOURS[place], "marker": _MARKERS[place]}
        _measured(axes, own, f"{family}, measured", style)
        known = [(one.k, 1e3 * one.predicted) for one in own if one.predicted]
        if known:
            label = f"{family}, expected"
            # Where two formulas are one, both are seen: their dashes take turns.
            dashes = (1.5 * place, (1.5, 4.5))
            x, y = zip(*known, strict=True)
            axes.plot(x, y, linestyle=dashes, color=COLOURS[place], label=label, lw=2)
    others = [one for one in group if one.family is None]
    for n, one in enumerate(others):
        place = (len(_FAMILIES) + n) % len(COLOURS)
        style = {"color": COLOURS[place], "marker": _MARKERS[place % len(_MARKERS)]}
        _measured(axes, [one], one.name, style | {"linestyle": "none"})
    axes.set_xticks(sorted({one.k for one in group}))
    _scale(axes, [one.seconds for one in group])
    axes.set_xlabel("K, gradients of an update")
    axes.set_ylabel("time per update (ms)")
    axes.legend(**LEGEND)


def _measured(axes: Axes, own: Sequence[StepSummary], label: str, style: dict[str, Any]) -> None:
    if own:
        axes.errorbar(
            [one.k for one in own],
            [1e3 * one.seconds for one in own],
            yerr=[1e3 * min(one.wide, 0.99 * one.seconds) for one in own],
            label=label,
            markersize=5,
            linewidth=1.4,
            capsize=2,
            **style,
        )


def _losses(axes: Axes, group: Sequence[StepSummary], along: str) -> None:
    """Curves of loss over one of their columns; a family has a colour where there are many K."""
    curves = [(one.name, one.loss) for one in group if one.loss is not None]
    for n, (name, loss) in enumerate(curves):
        colour, dash = COLOURS[n % len(COLOURS)], _DASHES[n // len(COLOURS) % len(_DASHES)]
        axes.plot(getattr(loss, along), loss.loss, dash, color=colour, label=name, lw=1.3)
    if not curves:
        axes.set_axis_off()
        return
    axes.set_xlabel("time (s)" if along == "seconds" else "updates")
    axes.set_ylabel("loss (nats)")
    axes.legend(**LEGEND)


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Logarithmic where values differ widely; else from 0 on."""
    if min(values) > 0 and max(values) > _WIDE * min(values):
        from matplotlib.ticker import FuncFormatter, LogLocator

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.minorticks_off()
    else:
        axes.set_ylim(0, None)
