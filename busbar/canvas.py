"""Functions that all figures share: create a canvas, set up axes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any
from zlib import crc32

from busbar.errors import MissingLibrary
from busbar.units import format_seconds, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

#: Okabe and Ito's palette, which colour-blind readers can distinguish, with brown instead of yellow
#: (too pale on white). Black is reserved for the library's own collective.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#000000")
_BLACK = len(COLOURS) - 1
#: Style of a legend inside the axes. Its box is nearly opaque, so that lines behind are faint.
LEGEND: Mapping[str, Any] = {"fontsize": 7, "edgecolor": "none", "framealpha": 0.85}
_LETTERS = 11  # of a title in an inch
_NOTE_LETTERS = 15  # of a note in an inch
_MOST_SIZES = 8
_DECADES = 1e3
#: Panels share one axis if their upper ends are within this factor.
_NEAR = 2.0


def colours(names: Iterable[str], first: Collection[str] = ()) -> dict[str, int]:
    """Each algorithm's index in ``COLOURS``: a hash of the name, so that figures mostly agree.

    If the place is taken, the name gets the next free one. Names in ``first`` are placed before the
    others, otherwise in alphabetical order. From the eighth name on places are shared.
    """
    numbers: dict[str, int] = {}
    for name in sorted(set(names), key=lambda name: (name not in first, name)):
        if name == "library":
            numbers[name] = _BLACK
            continue
        wanted = crc32(name.encode()) % _BLACK
        free = [p % _BLACK for p in range(wanted, wanted + _BLACK)]
        taken = list(numbers.values())
        numbers[name] = min(free, key=taken.count)  # the first of the least taken
    return numbers


def colour_of(names: Iterable[str]) -> dict[str, str]:
    """The colour of each algorithm, for figures that have names and no rows."""
    return {name: COLOURS[place] for name, place in colours(names).items()}


def canvas(wide: float, high: float) -> Figure:
    """An empty figure of this size in inches. Raises MissingLibrary without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingLibrary("matplotlib") from None
    return Figure(figsize=(wide, high), layout="constrained")


def set_title(figure: Figure, *texts: str) -> None:
    """Set the title of a figure: each text on lines of its own, no wider than the figure."""
    room = int(_LETTERS * figure.get_figwidth())
    lines = [line for text in texts for line in wrap(text, room)]
    figure.suptitle("\n".join(lines), fontsize=11)


def set_note(figure: Figure, text: str) -> None:
    """Set a note below all axes of a figure, in lines no wider than it; none if it is empty."""
    room = int(_NOTE_LETTERS * figure.get_figwidth())
    if text:
        figure.supxlabel("\n".join(wrap(text, room)), fontsize=8)


def faint_grid(axes: Axes) -> None:
    """Draw a grid so faint that it is not taken for data."""
    axes.grid(alpha=0.25, linewidth=0.6)


def ranks_axis(axes: Axes, ranks: Iterable[int], label: str = "ranks") -> None:
    """Make the x axis a logarithmic axis of rank counts with a tick for each."""
    counts = sorted(set(ranks))
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(n) for n in counts], minor=False)
    axes.minorticks_off()
    axes.set_xlabel(label)


def sizes_axis(axes: Axes, sizes: Iterable[int], label: str = "size (bytes)") -> None:
    """Make the x axis a logarithmic axis of sizes with at most eight ticks."""
    every = sorted(set(sizes))
    shown = every[:: -(-len(every) // _MOST_SIZES) or 1]
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [format_size(size) for size in shown], minor=False)
    axes.minorticks_off()
    axes.set_xlabel(label)


def times_axis(axes: Axes, along_x: bool = False) -> None:
    """Make the y (or x) axis a logarithmic axis of times, with data in us and ticks with units.

    Ticks are at 1, 2, 5, 10 us, or at each decade if the axis has more than three.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    (axes.set_xscale if along_x else axes.set_yscale)("log")
    axis: Axis = axes.xaxis if along_x else axes.yaxis
    low, high = sorted(axis.get_view_interval())
    every, none = LogLocator(subs=(1.0, 2.0, 5.0), numticks=30), NullLocator()
    wide = high > _DECADES * low
    axis.set_major_locator(LogLocator(numticks=30) if wide else every)
    axis.set_minor_locator(LogLocator(subs=(2.0, 5.0), numticks=30) if wide else none)
    time_ticks(axis)


def time_ticks(axis: Axis) -> None:
    """Give the ticks of an axis with data in us their units."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_time(value * 1e-6)))


def tick_time(seconds: float) -> str:
    """The text of a tick without trailing zeros, such as ``2 us`` or ``0.5 us``."""
    return re.sub(r"\.0+ |(?<=\.\d)0+ ", " ", format_seconds(seconds))


def same_axes(panels: Sequence[Axes]) -> None:
    """Give panels the same y axis, unless the values of one would be too small to see on it."""
    used = [axes for axes in panels if axes.has_data()]
    limits = [axes.get_ylim() for axes in used]
    tops = [high for _, high in limits]
    if used[0].get_yscale() != "log" and max(tops) > _NEAR * min(tops):
        return
    for axes in used:
        axes.set_ylim(min(low for low, _ in limits), max(tops))
        axes.label_outer()
