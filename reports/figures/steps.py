"""Figures of training steps: time per update over K, loss curves, compute and exposed exchange.

An update is one change of the weights; K is the number of gradients in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from busbar.canvas import COLOURS, LEGEND, canvas, faint_grid, ranks_axis, set_note
from busbar.errors import ReportError
from busbar.files import encode_figure
from busbar.units import format_count, format_seconds
from reports.analysis.cautions import disturbed
from reports.analysis.steps import StepFigures, StepSummary, figures, summaries
from reports.figures.series import MARKERS, QUIET
from reports.records.measurement import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FAMILIES = ("k-sync", "k-batch-sync", "k-async", "k-batch-async")
_DASHES = ("-", "--", ":", "-.")
#: Values that differ by more than this factor are drawn logarithmically.
_WIDE = 8
# Of K, between all-reduces, which all are at K = P.
_ASIDE = 0.08
_COMPUTE, _EXPOSED = "#0072B2", "#D55E00"
_MOST = 40
_Steps = list[tuple[Measurement, StepFigures]]


def picture(measured: Sequence[Measurement], form: str) -> bytes:
    """Draw time per update of the weights, and loss curves: a row of panels for each title.

    ``form``: ``png``, ``svg`` or ``pdf``. Raises ReportError if there are no steps, MissingLibrary
    without matplotlib.
    """
    steps = summaries(measured)
    if not steps:
        raise ReportError("no record of training steps has times; nothing to draw")
    ordered = sorted(steps, key=lambda one: one.title)
    every = [list(group) for _, group in groupby(ordered, key=lambda one: one.title)]
    # All-reduces without a loss have no K to vary, and are drawn only if there is nothing else.
    groups = [one for one in every if any(s.family or s.loss for s in one)] or every
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
    set_note(figure, disturbed(measured))
    return encode_figure(figure, form)


def _places(group: Sequence[StepSummary]) -> dict[str, int]:
    """The place of each update in the colours, by name: that of its family, or one of its own."""
    others = [one.name for one in group if one.family is None]
    own = {name: len(_FAMILIES) + n for n, name in enumerate(dict.fromkeys(others))}
    return own | {one.name: _FAMILIES.index(one.family) for one in group if one.family is not None}


def _per_update(axes: Axes, group: Sequence[StepSummary]) -> None:
    """Draw the time per update of the weights over K, the gradients that the server waits for.

    Updates that wait for the gradients of all P learners are at K = P.
    """
    for place, family in enumerate(_FAMILIES):
        own = sorted((one for one in group if one.family == family), key=lambda one: one.k)
        style: dict[str, Any] = {"color": COLOURS[place], "marker": MARKERS[place]}
        name = _family_name(family, own)
        _measured(axes, own, f"{name}, measured", style)
        known = [(one.k, 1e3 * one.predicted) for one in own if one.predicted]
        if known:
            label = f"{name}, expected"
            # Dashes alternate, so that both of two identical formulas are visible.
            dashes = (1.5 * place, (1.5, 4.5))
            x, y = zip(*known, strict=True)
            # A line of one point is not seen.
            mark = "_" if len(x) == 1 else ""
            style = {"color": COLOURS[place], "marker": mark}
            axes.plot(x, y, linestyle=dashes, label=label, lw=2, ms=12, **style)
    others, places = [one for one in group if one.family is None], _places(group)
    for n, one in enumerate(others):
        place = places[one.name]
        style = {
            "color": COLOURS[place % len(COLOURS)],
            "marker": MARKERS[place % len(MARKERS)],
        }
        aside = min(_ASIDE, 0.8 / len(others)) * (n - (len(others) - 1) / 2)
        _measured(axes, [one], one.name, style | {"linestyle": "none"}, aside)
    counts = sorted({one.k for one in group})
    axes.set_xticks(counts)
    axes.set_xlim(counts[0] - 0.5, counts[-1] + 0.5)
    _scale(axes, [one.step.value for one in group])
    axes.set_xlabel("K, gradients of an update")
    axes.set_ylabel("time per update (ms)")
    axes.legend(**LEGEND, handlelength=4)  # as long as two dots and more


def _family_name(family: str, own: Sequence[StepSummary]) -> str:
    """A line's name as ``--update`` has it: ``k-sync:K`` for several K, else the updates' own.

    An update with a name without K, such as sync, is a point of the line of its family.
    """
    names = list(dict.fromkeys(one.name for one in own))
    if len({one.k for one in own}) > 1:
        names = [f"{family}:K", *(name for name in names if not name.startswith(family))]
    return ", ".join(names)


def _measured(
    axes: Axes,
    own: Sequence[StepSummary],
    label: str,
    style: dict[str, Any],
    aside: float = 0.0,
) -> None:
    """Draw measured times with their intervals, ``aside`` of their K so that none hides another."""
    if own:
        errors = [
            (one.step.value - low, high - one.step.value)
            for one in own
            for low, high in [one.step.ends or (one.step.value, one.step.value)]
        ]
        axes.errorbar(
            [one.k + aside for one in own],
            [1e3 * one.step.value for one in own],
            yerr=[[1e3 * max(0.0, side) for side in sides] for sides in zip(*errors, strict=True)],
            label=label,
            markersize=5,
            linewidth=1.4,
            capsize=2,
            **style,
        )


def _losses(axes: Axes, group: Sequence[StepSummary], along: str) -> None:
    """Draw loss curves over ``along``: ``seconds``, or the number of updates of the weights.

    An update has the colour that it has in the panel of times. Axes without a curve are hidden.
    """
    curves = [(one.name, one.loss) for one in group if one.loss is not None]
    places, drawn = _places(group), Counter[str]()
    for name, loss in curves:
        colour = COLOURS[places[name] % len(COLOURS)]
        dash = _DASHES[drawn[colour] % len(_DASHES)]
        drawn[colour] += 1
        axes.plot(getattr(loss, along), loss.loss, dash, color=colour, label=name, lw=1.3)
    if not curves:
        axes.set_axis_off()
        return
    axes.set_xlabel("time (s)" if along == "seconds" else "updates")
    axes.set_ylabel("loss (nats)")
    axes.legend(**LEGEND)


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Make the y axis logarithmic if values differ widely, otherwise start it at 0."""
    if min(values) > 0 and max(values) > _WIDE * min(values):
        from matplotlib.ticker import FuncFormatter, LogLocator

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.minorticks_off()
    else:
        axes.set_ylim(0, None)


def bars(steps: Sequence[Measurement], form: str) -> bytes | None:
    """Draw a step's parts and its efficiency over ranks: one row of panels for each model.

    ``form``: ``png``, ``svg`` or ``pdf``. None if no record has compute that was measured without
    exchange. Raises MissingLibrary without matplotlib.
    """
    known = [(one, f) for one in steps if (f := figures(one)) is not None and f.compute]
    if not known:
        return None
    known.sort(key=lambda pair: pair[0].collective)
    groups = [list(group) for _, group in groupby(known, key=lambda pair: pair[0].collective)]
    several = any(len({one.ranks for one, _ in group}) > 1 for group in groups)
    high = sum(1.2 + 0.28 * min(_MOST, len(group)) for group in groups)
    figure = canvas(13 if several else 8, max(3.0, high))
    panels = figure.subplots(len(groups), 2 if several else 1, squeeze=False)
    for row, group in zip(panels, groups, strict=True):
        _stacked(row[0], group[:_MOST])
        row[0].set_title(group[0][0].collective, fontsize=10)
        if several:
            _efficiency(row[1], group)
    set_note(figure, disturbed([one for one, _ in known]))
    return encode_figure(figure, form)


def _stacked(axes: Axes, group: _Steps) -> None:
    """Draw a bar for each kind of exchange (all-reduce, parameter server, …): compute and exchange.

    The exchange is the exposed part, which compute does not hide. A mark is at the predicted step.
    With parameter servers the rest is what a learner does not wait for messages: also timers that
    fire late.
    """
    names, of_run = list[str](), Counter[str]()
    for one, _ in group:
        name = f"{one.algorithm}, {format_count(one.ranks, 'rank')}"
        of_run[name] += 1  # rows of one name are of several launches
        names.append(f"{name} ({of_run[name]})" if of_run[name] > 1 else name)
    compute = [1e3 * min(f.compute or 0.0, f.step.value) for _, f in group]
    exposed = [1e3 * f.step.value - c for (_, f), c in zip(group, compute, strict=True)]
    places = range(len(group))
    serves = any(one.step is not None and one.step.learners is not None for one, _ in group)
    rest = "compute; with servers all but\nwaiting for messages" if serves else "compute"
    axes.barh(places, compute, color=_COMPUTE, label=rest)
    axes.barh(places, exposed, left=compute, color=_EXPOSED, label="exposed exchange")
    wide = max(1e3 * f.step.value for _, f in group)
    labelled = False
    for place, (_, f) in zip(places, group, strict=True):
        step = f.step.value
        axes.text(1e3 * step + 0.01 * wide, place, format_seconds(step), va="center", fontsize=7)
        if f.predicted is not None:
            x, label = 1e3 * f.predicted, None if labelled else "predicted"
            axes.plot([x, x], [place - 0.45, place + 0.45], color=QUIET, lw=1.6, label=label)
            labelled = True
    axes.set_yticks(places, names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * wide)
    axes.set_xlabel("step (ms)")
    # Beside the axes: inside, it would hide bars, which may be as wide as the axes.
    axes.legend(**LEGEND, loc="upper left", bbox_to_anchor=(1, 1))


def _efficiency(axes: Axes, group: _Steps) -> None:
    """Draw samples/s over P x samples/s of one rank, for kinds of exchange measured on one rank."""
    names = dict.fromkeys(one.algorithm for one, _ in group)
    drawn = False
    for n, name in enumerate(names):
        rates = {one.ranks or 1: f.rate.value for one, f in group if one.algorithm == name}
        if 1 not in rates:
            continue
        points = [(p, 100 * rate / p / rates[1]) for p, rate in sorted(rates.items())]
        colour = COLOURS[n % len(COLOURS)]
        axes.plot(*zip(*points, strict=True), "o-", color=colour, label=name, ms=4, lw=1.4)
        drawn = True
    if not drawn:
        axes.set_axis_off()
        return
    ranks_axis(axes, (one.ranks or 1 for one, _ in group))
    axes.set_ylim(0, None)
    axes.set_ylabel("efficiency (% of as many times one rank)")
    faint_grid(axes)
    axes.legend(**LEGEND)
