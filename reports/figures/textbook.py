"""The figure of `reports.analysis.textbook`: time over ranks, and time over sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from busbar.canvas import (
    canvas,
    colour_of,
    faint_grid,
    ranks_axis,
    set_title,
    sizes_axis,
    times_axis,
)
from busbar.files import encode_figure
from busbar.units import format_count, format_size
from reports.analysis.textbook import (
    ALGORITHMS,
    FORMULAS,
    LawComparison,
    LawTiming,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = colour_of(ALGORITHMS)
_MARKERS = {"ps": "s", "ring": "o", "sharded_ps": "D"}
# Different widths, so that both of two identical curves are visible.
_WIDTHS = {"ps": 1.2, "ring": 2.6, "sharded_ps": 1.2}
_NAMES = {"ps": "parameter server", "ring": "ring", "sharded_ps": "sharded server"}


def picture(comparison: LawComparison, form: str) -> bytes:
    """Draw the comparison as PNG or SVG: the largest size over P, and the most ranks over n.

    A panel of one rank count or one size is left out beside the other. Raises MissingLibrary
    without matplotlib.
    """
    cells = comparison.cells
    known = [c for c in cells if c.measured] or list(cells)
    size, ranks = max(c.size for c in known), max(c.ranks for c in known)
    several_sizes = len({c.size for c in cells}) > 1
    several_ranks = len({c.ranks for c in cells}) > 1 or not several_sizes
    panels = several_ranks + several_sizes
    figure = canvas(5.5 * panels if panels > 1 else 7, 5.4)
    drawn = list(figure.subplots(1, panels, squeeze=False)[0])
    if several_ranks:
        left = drawn[0]
        over_ranks = [comparison.of(name, size=size) for name in ALGORITHMS]
        _lines(left, over_ranks, lambda c: c.ranks, lambda c: c.over_ranks, "median over P")
        ranks_axis(left, (c.ranks for c in cells), "ranks P")
        left.set_title(f"all-reduce of {format_size(size)} over P", fontsize=10)
    if several_sizes:
        right = drawn[-1]
        over_sizes = [comparison.of(name, ranks=ranks) for name in ALGORITHMS]
        _lines(right, over_sizes, lambda c: c.size, lambda c: c.over_sizes, "median over N")
        sizes_axis(right, (c.size for c in cells), "size N (bytes)")
        right.set_title(f"{format_count(ranks, 'rank')} over N", fontsize=10)
    for axes in drawn:
        times_axis(axes)
        axes.set_ylabel("time")
        faint_grid(axes)
        axes.legend(
            fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2
        )
    # With one rank count there is no growth, and so no verdict.
    verdict = comparison.verdict if comparison.growths else None
    title = verdict.headline if verdict else "Parameter server and ring against the law"
    set_title(figure, title, comparison.beside)
    return encode_figure(figure, form)


_X = Callable[[LawTiming], float]
_Time = Callable[[LawTiming], float | None]


def _lines(
    axes: Axes, curves: Sequence[Sequence[LawTiming]], x: _X, textbook: _Time, of: str
) -> None:
    """Draw one panel with a curve for each algorithm.

    ``x``: the rank count or size of a measurement, on the axis; ``textbook``: its time by formula,
    at the rate that is ``of`` all rates.
    """
    for cells in curves:
        _measured(axes, cells, x)
        for style, label, points in _modelled(cells, x, textbook, of):
            name = cells[0].algorithm
            axes.plot(*zip(*points, strict=True), style, color=_COLOURS[name],
            linewidth=_WIDTHS[name] if style == ":" else 1.2,
                      label=f"{_NAMES[name]}, {label}")  # fmt: skip


_Curve = tuple[str, str, list[tuple[float, float]]]
"""A line's style, what it is, and its points (x, us)."""


def _modelled(cells: Sequence[LawTiming], x: _X, textbook: _Time, of: str) -> Iterator[_Curve]:
    predicted = [(x(c), 1e6 * c.predicted) for c in cells if c.predicted]
    if predicted:
        yield ":", "predicted", predicted
    known = [(c, time) for c in cells if (time := textbook(c))]
    if known:
        first, time = known[0]
        rate = first.volume * first.size / time / 1e9
        points = [(x(c), 1e6 * time) for c, time in known]
        yield "--", f"{FORMULAS[first.algorithm]} at {rate:.3g} GB/s ({of})", points


def _measured(axes: Axes, cells: Sequence[LawTiming], x: _X) -> None:
    known = [(c, c.measured) for c in cells if c.measured]
    if not known:
        return
    name = known[0][0].algorithm
    axes.errorbar(
        [x(c) for c, _ in known],
        [1e6 * time for _, time in known],
        yerr=[
            [1e6 * max(0.0, time - (c.low or time)) for c, time in known],
            [1e6 * max(0.0, (c.high or time) - time) for c, time in known],
        ],
        label=f"{_NAMES[name]}, measured",
        color=_COLOURS[name],
        marker=_MARKERS[name],
        markersize=5,
        linewidth=1.4,
        capsize=2,
    )
