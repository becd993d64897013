"""The figure of `reports.model`: time over ranks, and time over sizes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from reports.errors import MissingLibrary
from reports.model import ALGORITHMS, Cell, Comparison
from reports.shown import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

__all__ = ["picture"]

_COLOURS = {"ps": "#D55E00", "ring": "#0072B2"}
_MARKERS = {"ps": "s", "ring": "o"}
_NAMES = {"ps": "parameter server", "ring": "ring"}
_VOLUMES = {"ps": "2n(P-1)", "ring": "2n(P-1)/P"}


def picture(comparison: Comparison, form: str) -> bytes:
    """PNG or SVG: left the largest size over P, right the most ranks over n.

    Raises MissingLibrary without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingLibrary("matplotlib") from None
    cells = comparison.cells
    known = [c for c in cells if c.measured] or list(cells)
    size, ranks = max(c.size for c in known), max(c.ranks for c in known)
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _lines(left, comparison, lambda name: comparison.of(name, size=size), lambda c: c.ranks)
    left.set_xlabel("ranks P")
    left.set_title(f"all-reduce of {size_text(size)} over P", fontsize=10)
    left.set_xticks(sorted({c.ranks for c in cells}))
    left.set_ylim(bottom=0)
    _lines(right, comparison, lambda name: comparison.of(name, ranks=ranks), lambda c: c.size)
    right.set_xlabel("size n (bytes)")
    right.set_xscale("log", base=2)
    right.set_yscale("log")
    right.set_title(f"{ranks} ranks over n", fontsize=10)
    sizes = sorted({c.size for c in cells})
    right.set_xticks(sizes[:: max(1, len(sizes) // 8)])
    right.set_xticklabels([size_text(s) for s in sizes[:: max(1, len(sizes) // 8)]])
    for axes in (left, right):
        axes.set_ylabel("time (ms)")
        axes.grid(alpha=0.25, linewidth=0.6)
    left.legend(fontsize=8, frameon=False)
    out = io.BytesIO()
    figure.savefig(out, format=form, dpi=130)
    return out.getvalue()


def _lines(
    axes: Axes,
    comparison: Comparison,
    of: Callable[[str], Sequence[Cell]],
    x: Callable[[Cell], float],
) -> None:
    for name in ALGORITHMS:
        cells, colour = of(name), _COLOURS[name]
        measured = [c for c in cells if c.measured]
        if measured:
            axes.errorbar(
                [x(c) for c in measured],
                [1e3 * (c.measured or 0) for c in measured],
                yerr=[
                    [
                        1e3 * max(0.0, (c.measured or 0) - (c.low or c.measured or 0))
                        for c in measured
                    ],
                    [
                        1e3 * max(0.0, (c.high or c.measured or 0) - (c.measured or 0))
                        for c in measured
                    ],
                ],
                label=f"{_NAMES[name]}, measured",
                color=colour,
                marker=_MARKERS[name],
                markersize=5,
                linewidth=1.4,
                capsize=2,
            )
        for style, label, value in (
            (":", "predicted", [c.predicted for c in cells]),
            ("--", f"{_VOLUMES[name]} at one rate", [c.textbook for c in cells]),
        ):
            points = [(x(c), 1e3 * v) for c, v in zip(cells, value, strict=True) if v]
            if points:
                axes.plot(
                    [a for a, _ in points],
                    [b for _, b in points],
                    style,
                    color=colour,
                    linewidth=1.2,
                    label=f"{_NAMES[name]}, {label}",
                )
