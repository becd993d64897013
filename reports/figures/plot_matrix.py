"""A measured P x P matrix as a heat map, with numbers in the cells while they are readable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reports.analysis.machine import shown
from reports.analysis.stragglers_matrix import Pairs
from reports.figures.canvas import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_NUMBERS = 16
_MOST_NAMES = 32


def heat_map(matrix: Pairs) -> Figure:
    """Rows send to columns. Dark is bad, whatever the quantity; slow pairs have a frame."""
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
