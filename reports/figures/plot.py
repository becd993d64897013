"""Figures of a run, drawn by matplotlib: one file for each kind of figure and group of rows.

Colours are Okabe and Ito's, which colour-blind readers can distinguish; markers differ too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite, isnan, nan
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from busbar.canvas import (
    LEGEND,
    canvas,
    faint_grid,
    ranks_axis,
    same_axes,
    set_note,
    set_title,
    sizes_axis,
    time_ticks,
    times_axis,
)
from busbar.errors import ReportError
from busbar.files import encode_figure
from busbar.units import format_seconds, format_size, is_open
from reports.analysis.cautions import (
    ABOVE_IN_SHORT,
    ABOVE_LIMIT,
    disturbed,
    share_of_limit,
    too_disturbed,
    why_above,
)
from reports.analysis.machine import MachinePart, shown
from reports.figures.series import QUIET, Palette, PlotLine, bound_of, fitted
from reports.records.cores import marked, oversubscription
from reports.records.measurement import Measurement, grouped
from reports.records.metrics import BESIDE, PLACEMENT, Metric, is_measured
from topology.model.slow_units import Pairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: If iterations differ by more than this factor, their axis is logarithmic.
_WIDE = 20


def _marks(series: Sequence[PlotLine]) -> list[str]:
    """Explanations of the special marks (hollow, asterisk) that occur in a figure."""
    rows = [r for s in series for r in s.rows]
    marks = ["hollow: oversubscribed"] * any(r.oversubscribed for r in rows)
    marks += ["*: work shared by ranks"] * any(marked(r) != r.algorithm for r in rows)
    wide = any(r.low_s and r.high_s and _interval(r) is None for r in rows)
    return [*marks, *["no band or bar: the interval is too wide to tell"] * wide]


def _exceeded(series: Sequence[PlotLine]) -> list[str]:
    """The legend's text on sizes without a limit because a row exceeds it, with the reasons."""
    rows = [r for s in series for r in s.rows]
    above = [r for r in rows if (share_of_limit(r) or 0.0) > ABOVE_LIMIT]
    letters = dict.fromkeys(why_above(r, share_of_limit(r) or 0.0) for r in above)
    reasons = ", ".join(ABOVE_IN_SHORT[one] for one in letters if one)
    return [f"no limit where it is exceeded{reasons and f': {reasons}'}"] * bool(above)


def _hollow(
    axes: Axes, s: PlotLine, rows: Sequence[Measurement], xs: Sequence[float], ys: Sequence[float]
) -> None:
    """Draw hollow markers on points whose ranks shared cores."""
    at = [n for n, r in enumerate(rows) if r.oversubscribed]
    style = {**s.style, "linestyle": "none", "markerfacecolor": "white", "zorder": 3}
    if at:
        axes.plot([xs[n] for n in at], [ys[n] for n in at], **style)


def _legend(axes: Axes, *more: str) -> None:
    """Draw the legend below the axes, where it covers no line."""
    _, names = axes.get_legend_handles_labels()
    title = fill("; ".join(more), 80) or None
    common: dict[str, Any] = {**LEGEND, "title_fontsize": 7, "title": title}
    columns = 2 if max(map(len, names)) <= 45 else 1
    axes.legend(**common, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=columns)


def _rates(r: Measurement) -> tuple[float, float]:
    """The 95 % interval of the time as an interval of busbw, in GB/s."""
    fixed = (r.busbw_bytes_per_s or 0) * (r.time_s or 0) / 1e9
    return fixed / (r.high_s or 1), fixed / (r.low_s or 1)


def _interval(r: Measurement) -> tuple[float, float] | None:
    """The 95 % interval of the time, if tables show it: not one whose upper end means nothing."""
    if not r.low_s or not r.high_s or is_open(r.low_s, r.high_s):
        return None
    return r.low_s, r.high_s


def _with_band(axes: Axes, s: PlotLine, rows: Sequence[Measurement], xs: Sequence[int]) -> None:
    """Draw busbw in GB/s with its 95 % intervals as a band in the same colour."""
    rates = [(r.busbw_bytes_per_s or 0) / 1e9 for r in rows]
    axes.plot(xs, rates, label=s.name, **s.style)
    _hollow(axes, s, rows, xs, rates)
    if not s.bright:
        return
    ends = [_rates(r) if _interval(r) else (nan, nan) for r in rows]
    low, high = zip(*ends, strict=True)
    axes.fill_between(xs, low, high, color=s.style["color"], alpha=0.2, linewidth=0)
    # A band of one point has no width and cannot be seen.
    for n, (x, end) in enumerate(zip(xs, ends, strict=True)):
        beside = [*ends[max(0, n - 1) : n], *ends[n + 1 : n + 2]]
        if not isnan(end[0]) and all(isnan(one) for one, _ in beside):
            axes.vlines(x, *end, color=s.style["color"], linewidth=1)


# The most height of the band of an interval, over that of the highest line.
_MOST_ABOVE = 1.5


def _busbw(axes: Axes, series: Sequence[PlotLine], limit: float | None) -> bool:
    bounds: dict[int, float] = {}
    holds = _holds(series)
    for s in series:
        rows = [r for r in s.rows if r.size and r.busbw_bytes_per_s is not None]
        if not rows:
            continue
        _with_band(axes, s, rows, [r.size or 0 for r in rows])
        _fit_of_rate(axes, s, rows)
        for r in filter(holds, rows):
            bound = bound_of(r, limit)
            if bound:
                bounds[r.size or 0] = max(bound / 1e9, bounds.get(r.size or 0, 0.0))
    if not axes.lines:
        return False
    if bounds:
        _bound(axes, series, bounds, f"limit, at most {max(bounds.values()):.3g} GB/s")
    sizes_axis(axes, (r.size for s in series for r in s.rows if r.size))
    # A very wide band is cut: it would compress the lines.
    top = max(float(np.nanmax(np.asarray(line.get_ydata()))) for line in axes.lines)
    ends = [float(one.get_datalim(axes.transData).y1) for one in axes.collections]
    reach = max((end for end in ends if isfinite(end)), default=top)
    high = max(top, min(reach, _MOST_ABOVE * top))
    axes.set_ylim(0, 1.06 * high or 1.0)  # one rank has a busbw of 0
    axes.set_ylabel("busbw (GB/s)")
    cut = ", cut at the top" if reach > 1.06 * high else ""
    band = [f"band: 95 % interval{cut}"] * bool(axes.collections)
    _legend(axes, *band, *_fit_note(axes, "dotted: fit"), *_exceeded(series), *_marks(series))
    return True


def _holds(series: Sequence[PlotLine]) -> Callable[[Measurement], bool]:
    """Whether a row's limit held while it ran: no row of its run and size is above it.

    All algorithms of a run have one limit at each size. A row above `ABOVE_LIMIT` shows that it is
    no bound there.
    """

    def measured(r: Measurement) -> tuple[object, ...]:
        return id(r.run), r.collective, r.size, r.placement, r.limit_s

    rows = [r for s in series for r in s.rows if r.limit_s]
    above = {measured(r) for r in rows if (share_of_limit(r) or 0.0) > ABOVE_LIMIT}
    return lambda r: measured(r) not in above


def _bound(axes: Axes, series: Sequence[PlotLine], bounds: Mapping[int, float], label: str) -> None:
    """Draw a bound by size. The line has a gap at measured sizes that have no bound."""
    at = sorted({r.size for s in series for r in s.rows if r.size} | bounds.keys())
    style: dict[str, Any] = {"color": QUIET, "linestyle": "-.", "linewidth": 1.2, "marker": "_"}
    axes.plot(at, [bounds.get(x, nan) for x in at], label=label, **style)


def _fit_of_rate(axes: Axes, s: PlotLine, rows: Sequence[Measurement]) -> None:
    """Draw the fitted time converted to busbw, with the bus factor of the rows."""
    timed = [r for r in rows if r.time_s and r.busbw_bytes_per_s and r.size]
    fit = fitted(timed) if s.bright else None
    if fit is None:
        return
    r = timed[-1]
    factor = (r.busbw_bytes_per_s or 0) * (r.time_s or 0) / (r.size or 1) / 1e9
    rates = [factor * size / time for size, time in zip(fit.sizes, fit.times, strict=True)]
    axes.plot(fit.sizes, rates, color=s.style["color"], linewidth=0.9, linestyle=":", alpha=0.9)


def _fit_note(axes: Axes, text: str) -> list[str]:
    """The legend's text on fits if one was drawn."""
    return [text] * any(line.get_linestyle() == ":" for line in axes.lines)


def _latency(axes: Axes, series: Sequence[PlotLine], limit: float | None) -> bool:
    bounds: dict[int, float] = {}
    holds = _holds(series)
    for s in series:
        rows = [r for r in s.rows if r.size and r.time_s]
        if not rows:
            continue
        fit = fitted(rows) if s.bright else None
        label = s.name if fit is None else f"{s.name}: {fit.text}"
        if fit is not None:
            line = [t * 1e6 for t in fit.times]
            axes.plot(fit.sizes, line, color=s.style["color"], linewidth=0.9, linestyle=":")
        style = {**s.style, "linestyle": "none"}
        _with_bars(axes, replace(s, style=style), rows, [r.size or 0 for r in rows], label)
        for r in filter(holds, rows):
            bound, rate = bound_of(r, limit), r.busbw_bytes_per_s
            if bound and rate:
                least = (r.time_s or 0.0) * rate / bound * 1e6
                bounds[r.size or 0] = min(least, bounds.get(r.size or 0, least))
    if not axes.lines:
        return False
    if bounds:
        _bound(axes, series, bounds, "limit")
    sizes_axis(axes, (r.size for s in series for r in s.rows if r.size))
    times_axis(axes)
    axes.set_ylabel("time")
    fit_note = _fit_note(axes, "dotted: fit alpha + size / rate, by ranges")
    notes = [*fit_note, *_exceeded(series), *_marks(series)]
    _legend(axes, "bar: 95 % interval", *notes)
    return True


def _with_bars(
    axes: Axes, s: PlotLine, rows: Sequence[Measurement], xs: Sequence[int], label: str
) -> None:
    """Draw times in us with their 95 % intervals as error bars."""
    times = [(r.time_s or 0.0) * 1e6 for r in rows]
    axes.plot(xs, times, label=label, **s.style)
    _hollow(axes, s, rows, xs, times)
    known = [
        (x, r.time_s or 0.0, *ends)
        for x, r in zip(xs, rows, strict=True)
        if s.bright and (ends := _interval(r))
    ]
    bars = [
        [(t - low) * 1e6 for _, t, low, _ in known],
        [(high - t) * 1e6 for _, t, _, high in known],
    ]
    axes.errorbar([x for x, *_ in known], [t * 1e6 for _, t, *_ in known], yerr=bars, fmt="none",
                  ecolor=s.style["color"], capsize=2, linewidth=1)  # fmt: skip


def _ecdf(axes: Axes, series: Sequence[PlotLine], limit: float | None) -> bool:
    """Draw the cumulative distribution of iterations at the largest size that most lines have."""
    sizes = [r.size or 0 for s in series for r in s.rows if len(r.times_s) > 1]
    if not sizes:
        return False
    size = max(set(sizes), key=lambda x: (sizes.count(x), x))
    for s in series:
        times = sorted(t * 1e6 for r in s.rows if r.size == size for t in r.times_s)
        if times:
            shares = [i / len(times) for i in range(len(times) + 1)]
            label = f"{s.name}, n = {len(times)}"
            axes.step(
                [times[0], *times], shares, where="post", label=label, **{**s.style, "marker": ""}
            )
    low, high = axes.dataLim.intervalx
    if high > _WIDE * low > 0:
        times_axis(axes, along_x=True)
    else:
        time_ticks(axes.xaxis)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel(f"time of an iteration at {format_size(size)}")
    axes.set_ylabel("share of iterations")
    _legend(axes)
    return True


def _plain(metric: Metric, axes: Axes, series: Sequence[PlotLine], limit: float | None) -> bool:
    """Draw a metric of another benchmark against size, in its unit (seconds in us)."""
    timed = metric.form is format_seconds
    scale = 1e-6 if timed else metric.scale
    for s in series:
        rows = [r for r in s.rows if r.nbytes and metric.of(r) is not None]
        if rows:
            xs, ys = [r.nbytes or 0 for r in rows], [(metric.of(r) or 0.0) / scale for r in rows]
            axes.plot(xs, ys, label=s.name, **s.style)
            _hollow(axes, s, rows, xs, ys)
    if not axes.lines:
        return False
    sizes_axis(axes, (r.nbytes for s in series for r in s.rows if r.nbytes))
    if timed:
        times_axis(axes)
    unit = "" if timed else metric.unit
    axes.set_ylabel(f"{metric.name} ({unit})" if unit else metric.name)
    _legend(axes, *_marks(series))
    return True


#: The function that draws each kind of figure, from axes, lines of one placement, and a bound on
#: busbw in bytes per second. It returns False if there is nothing to draw.
FIGURES: Mapping[str, Callable[[Axes, Sequence[PlotLine], float | None], bool]] = {
    "busbw": _busbw,
    "latency": _latency,
    "ecdf": _ecdf,
    **{metric.name.replace(" ", "-"): partial(_plain, metric) for metric in BESIDE},
}


def scaling(rows: Sequence[Measurement], palette: Palette) -> Figure | None:
    """Time at the smallest and busbw at the largest size that most rank counts have, over ranks.

    Shows out-of-place if both placements were measured. None for fewer than two rank counts.
    """
    places = {r.placement for r in rows}
    rows = [r for r in rows if r.ranks and r.placement == ("out" if "out" in places else "in")]
    rows = [r for r in rows if r.size] or [r for r in rows if r.size == 0]  # 0: a barrier
    counts = {r.ranks or 0 for r in rows}
    shared = {
        size: len({r.ranks for r in rows if r.size == size}) for size in {r.size or 0 for r in rows}
    }
    if len(counts) < 2 or max(shared.values()) < 2:
        return None
    most = [size for size, n in shared.items() if n == max(shared.values())]
    rated = [r for r in rows if r.size == max(most) and r.busbw_bytes_per_s]
    panels = 2 if rated else 1
    figure = canvas(6.4 * panels, 4.6)
    left, *others = figure.subplots(1, panels, squeeze=False)[0]
    timed = palette.series([r for r in rows if r.size == min(most) and r.time_s], ranks=True)
    for s in timed:
        _with_bars(left, s, s.rows, [r.ranks or 0 for r in s.rows], s.name)
    times_axis(left)
    left.set_ylabel(f"time at {format_size(min(most))}")
    for axes in others:
        for s in palette.series(rated, ranks=True):
            _with_band(axes, s, s.rows, [r.ranks or 0 for r in s.rows])
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"busbw at {format_size(max(most))} (GB/s)")
    for axes in (left, *others):
        ranks_axis(axes, counts)
        faint_grid(axes)
        _legend(axes, "95 % intervals", *_marks(timed))
    return figure


_MOST_NUMBERS = 16
_MOST_NAMES = 32


def heat_map(matrix: Pairs) -> Figure:
    """A heat map of a matrix; rows send to columns. Dark is bad; slow pairs have a frame."""
    from matplotlib.patches import Rectangle

    p, (title, unit, cells) = len(matrix.ids), shown(matrix)
    values = np.array([[np.nan if c is None else c[0] for c in row] for row in cells])
    side = min(10.0, max(4.5, 0.55 * p + 1.5))
    figure = canvas(side + 1.2, side)
    axes = figure.subplots()
    colours = "viridis" if matrix.more_is_better else "viridis_r"
    image = axes.imshow(values, cmap=colours)
    figure.colorbar(image, ax=axes, label=unit, shrink=0.8)
    step = -(-p // _MOST_NAMES)
    named = range(0, p, step)
    axes.set_xticks(named, [matrix.ids[n] for n in named], rotation=90 if p > 4 else 0)
    axes.set_yticks(named, [matrix.ids[n] for n in named])
    axes.set_xlabel("to")
    axes.set_ylabel("from")
    if p <= _MOST_NUMBERS:
        for a, b in np.argwhere(~np.isnan(values)).tolist():
            red, green, blue, _ = image.cmap(image.norm(values[a, b]))
            light = 0.3 * red + 0.59 * green + 0.11 * blue > 0.5
            text = axes.text(b, a, f"{values[a, b]:.3g}", ha="center", va="center", fontsize=8)
            text.set_color("black" if light else "white")
    for a, b in matrix.slow:
        axes.add_patch(
            Rectangle((b - 0.5, a - 0.5), 1, 1, fill=False, edgecolor="#D55E00", linewidth=2)
        )
    slow = "\nframed: slow for a pair of its class" if matrix.slow else ""
    axes.set_title(f"{title} ({unit}){slow}", fontsize=10)
    return figure


def figures(
    rows: Sequence[Measurement],
    form: str = "png",
    limit: float | None = None,
    machine: MachinePart | None = None,
) -> dict[str, bytes]:
    """Draw all figures of rows. Returns file contents by name, one for each kind and setting.

    An algorithm has the same colour in all of them. ``limit`` (bytes per second) bounds busbw of
    rows without a limit of their own; ``machine`` adds a heat map for each matrix that was measured
    on it. Raises MissingLibrary without matplotlib, ReportError if there is nothing to draw.
    """
    drawn = [r for r in rows if is_measured(r)]
    palette = Palette.of(drawn)
    pictures: dict[str, bytes] = {}
    for words, group in _groups(drawn, ("collective", "dtype", "op", "ranks", "reading")).items():
        pictures |= _group(words, group, palette, form, limit)
    for words, group in _groups(drawn, ("collective", "dtype", "op", "reading")).items():
        figure = scaling(group, palette)
        if figure is not None:
            set_title(figure, _title(words, group))
            set_note(figure, disturbed(group))
            pictures[_file((*words, "scaling"))] = encode_figure(figure, form)
    if machine is not None:
        for matrix in machine.matrices:
            pictures[_file(("matrix", matrix.name))] = encode_figure(heat_map(matrix), form)
    if not pictures:
        raise ReportError("no row has a time or a rate to draw")
    return pictures


def _groups(
    rows: Sequence[Measurement], names: Sequence[str]
) -> dict[tuple[str, ...], list[Measurement]]:
    """Group rows by these fields; keys are the fields as texts."""

    def words(r: Measurement) -> tuple[str, ...]:
        values = {name: str(getattr(r, name) or "") for name in names}
        values["collective"] = r.collective or "unnamed"
        if values.get("ranks"):
            values["ranks"] += " ranks"
        return tuple(filter(None, values.values()))

    return grouped(rows, words)


def _group(
    words: tuple[str, ...],
    rows: Sequence[Measurement],
    palette: Palette,
    form: str,
    limit: float | None,
) -> dict[str, bytes]:
    """The figures of one setting, each with a panel per placement."""
    pictures = {}
    placements = [p for p in PLACEMENT if any(r.placement == p for r in rows)]
    series = palette.series(rows)
    for kind, draw in FIGURES.items():
        # A legend below the axes needs height.
        high = 4.9 + 0.15 * max(0, len(series) - 4)
        figure = canvas(6.4 * len(placements), high)
        panels = figure.subplots(1, len(placements), squeeze=False)[0]
        # Every panel gets all lines, so that styles are the same in all panels.
        drawn = [
            draw(axes, [s.placed(p) for s in series], limit)
            for axes, p in zip(panels, placements, strict=True)
        ]
        if not any(drawn):
            continue
        for axes, p in zip(panels, placements, strict=True):
            axes.set_title(PLACEMENT[p], fontsize=10)
            faint_grid(axes)
        same_axes(panels)
        set_title(figure, _title(words, rows))
        set_note(figure, disturbed(rows))
        pictures[_file((*words, kind))] = encode_figure(figure, form)
    return pictures


def _title(words: Sequence[str], rows: Sequence[Measurement]) -> str:
    return ", ".join(filter(None, (*words, *doubtful(rows))))


def doubtful(rows: Sequence[Measurement]) -> list[str]:
    """Why a figure's rows are to be doubted, in words for its title."""
    crowded = oversubscription(rows)
    return [crowded] * bool(crowded) + ["too disturbed to compare"] * bool(too_disturbed(rows))


def _file(words: Sequence[str]) -> str:
    return re.sub(r"[^\w.-]+", "-", "-".join(words))
