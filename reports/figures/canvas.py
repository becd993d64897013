"""Shared by all figures: a canvas, axes of ranks and of sizes, saving."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from busbar.errors import MissingLibrary
from busbar.figures import encoded
from busbar.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: What is no series: bounds and expectations.
QUIET = "#555555"
#: A legend inside the axes; lines that pass behind are read past.
LEGEND: Mapping[str, Any] = {"fontsize": 7, "edgecolor": "none", "framealpha": 0.85}
_MOST_SIZES = 8


def canvas(wide: float, high: float) -> Figure:
    """An empty figure, in inches. Raises MissingLibrary without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingLibrary("matplotlib") from None
    return Figure(figsize=(wide, high), layout="constrained")


def saved(figure: Figure, form: str, dpi: int = 130) -> bytes:
    """A figure as PNG, SVG or PDF."""
    return encoded(figure, form, dpi)


def faint_grid(axes: Axes) -> None:
    """Lines to read values by, which no series is taken for."""
    axes.grid(alpha=0.25, linewidth=0.6)


def ranks_axis(axes: Axes, ranks: Iterable[int], label: str = "ranks") -> None:
    """Numbers of ranks, logarithmic, each with its tick."""
    counts = sorted(set(ranks))
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(n) for n in counts], minor=False)
    axes.minorticks_off()
    axes.set_xlabel(label)


def sizes_axis(axes: Axes, sizes: Iterable[int], label: str = "size (bytes)") -> None:
    """Sizes, logarithmic, at most eight of them with a tick."""
    every = sorted(set(sizes))
    shown = every[:: -(-len(every) // _MOST_SIZES) or 1]
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [format_size(size) for size in shown], minor=False)
    axes.minorticks_off()
    axes.set_xlabel(label)
