"""Pictures of simulations: how busy a machine's links are, and how time grows.

Writes files and prints nothing. A drawing is first written to a temporary file, so a failure leaves
nothing behind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from busbar.canvas import colour_of, faint_grid, ranks_axis, sizes_axis, times_axis
from busbar.errors import Unsupported
from busbar.files import check_figure as checked
from busbar.files import save_figure as save
from collectives.predict.machine import Network
from collectives.predict.simulation import SimulationResult

_MOST_CABLES = 200_000
# More lines than this are drawn as an image inside the SVG.
_MOST_LINES = 4000
_MOST_NAMED = 40
_UNUSED = "#d8d8d8"

Points = NDArray[np.float64]


def _levels(machine: Network) -> NDArray[np.int64]:
    """The distance of every node from the nearest rank, in links."""
    level: NDArray[np.int64] = np.full(machine.nnodes, -1)
    level[: machine.nranks] = 0
    here = 0
    while True:
        reached = machine.links.head[level[machine.links.tail] == here]
        new = np.unique(reached[level[reached] < 0])
        if not len(new):
            return np.maximum(level, 0)
        here += 1
        level[new] = here


def positions(machine: Network) -> tuple[Points, bool]:
    """The position of every node, shape (nodes, 2), and whether cables may go round the edge.

    A torus is drawn as its grid. A network without switches, or with cables between nodes of one
    row, is drawn in circles, ranks outside. Any other is drawn in rows, ranks at the bottom.
    """
    if len(machine.grid) > 1 and machine.nranks == machine.nnodes:
        return _grid(machine.grid), True
    level = _levels(machine)
    links = machine.links
    flat = bool(((level[links.tail] == level[links.head]) & (links.tail != links.head)).any())
    place = np.zeros((machine.nnodes, 2))
    deepest = int(level.max(initial=0))
    for row in range(deepest + 1):
        nodes = np.flatnonzero(level == row)
        share = (np.arange(len(nodes)) + 0.5) / len(nodes)
        if flat or deepest == 0:
            radius = (deepest + 1 - row) / (deepest + 1)
            angle = 2 * math.pi * share
            place[nodes] = np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=1)
        else:
            place[nodes] = np.stack([share, np.full(len(nodes), row / deepest)], axis=1)
    return place, False


def _grid(sides: tuple[int, ...]) -> Points:
    """Draw the first two dimensions as a plane, and further ones as planes beside each other."""
    rank = np.arange(math.prod(sides))
    x, y = rank % sides[0], rank // sides[0] % sides[1]
    plane = rank // (sides[0] * sides[1])
    return np.stack([x + plane * (sides[0] + 1.5), -y], axis=1).astype(float)


def _lines(machine: Network, result: SimulationResult) -> tuple[Points, NDArray[np.float64]]:
    """Every cable as a line, shape (cables, 2, 2), and its busier direction's busy fraction."""
    links = machine.links
    busy = result.link_bytes / links.rate / (result.seconds or 1.0)
    low, high = np.minimum(links.tail, links.head), np.maximum(links.tail, links.head)
    apart = low != high
    key = low[apart].astype(np.int64) * machine.nnodes + high[apart]
    cables, which = np.unique(key, return_inverse=True)
    share = np.zeros(len(cables))
    np.maximum.at(share, which, busy[apart])
    place, around = positions(machine)
    ends = np.stack([place[cables // machine.nnodes], place[cables % machine.nnodes]], axis=1)
    if around:
        # Draw a cable round the edge as two stubs, instead of a line across the grid.
        far = np.abs(ends[:, 0] - ends[:, 1]).max(axis=1) > 1.6
        way = np.sign(ends[far, 1] - ends[far, 0]) * 0.5
        stubs = [np.stack([ends[far, i], ends[far, i] + s * way], 1) for i, s in ((0, -1), (1, 1))]
        ends = np.concatenate([ends[~far], *stubs])
        share = np.concatenate([share[~far], share[far], share[far]])
    order = np.argsort(share, kind="stable")
    return ends[order], share[order]


def draw_loads(machine: Network, result: SimulationResult, title: str, path: Path) -> None:
    """Draw the machine, its cables coloured by the share of the time that they are busy.

    Raises what `check_figure` does, and Unsupported for a machine with too many cables.
    """
    checked(path)
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    if len(machine.links) > 2 * _MOST_CABLES:
        raise Unsupported(f"{len(machine.links)} links are too many to draw; take fewer ranks")
    lines, share = _lines(machine, result)
    figure = Figure(figsize=(10, 6.2), layout="constrained")
    axes, beside = figure.subplots(1, 2, width_ratios=[3, 1])
    many = len(lines) > _MOST_LINES
    used = share > 0
    top = float(share.max(initial=0.0))
    thin = 0.4 if many else 1.0
    for mask, style in (
        (~used, {"colors": _UNUSED, "linewidths": thin}),
        (used, {"cmap": "viridis_r", "linewidths": thin * (1 + 1.5 * share[used] / (top or 1))}),
    ):
        drawn = LineCollection(list(lines[mask]), rasterized=many, **style)
        axes.add_collection(drawn)
    drawn.set_array(100 * share[used])
    drawn.set_clim(0, max(100 * top, 1e-9))
    figure.colorbar(drawn, ax=axes, label="busy, % of the time", shrink=0.8, location="left")
    place, around = positions(machine)
    _nodes(axes, machine, place)
    axes.autoscale_view()
    axes.margins(0.06)
    axes.set_axis_off()
    if around or not (place[:, 1] == 0).all():
        circles = (np.abs(place) <= 1).all() and (place < 0).any()
        axes.set_aspect("equal" if around or circles else "auto")
    each = np.sort(100 * result.link_bytes / machine.links.rate / (result.seconds or 1.0))[::-1]
    beside.stairs(each, np.linspace(0, 100, len(each) + 1), fill=True, color="#1f6fb4")
    beside.set(
        xlabel="links, busiest first, %",
        ylabel="busy, % of the time",
        xlim=(0, 100),
        ylim=(0, None),
    )
    beside.grid(alpha=0.3)
    figure.suptitle(title if len(title) < 90 else title.replace(", ", ",\n", 1))
    save(figure, path, 150)


def _nodes(axes: Any, machine: Network, place: Points) -> None:
    real = place[: machine.nranks], place[machine.nranks :]
    size = 18 if machine.nnodes <= 300 else 3 if machine.nnodes <= 5000 else 0.5
    colours = ("#333333", "#c8501e")
    for points, colour, label in zip(real, colours, ("rank", "switch"), strict=True):
        if len(points):
            axes.scatter(
                *points.T, s=size, color=colour, zorder=3, label=label, rasterized=size < 1
            )
    if len(real[1]):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, frameon=False, fontsize=8)
    if machine.nnodes <= _MOST_NAMED:
        middle = place.mean(axis=0)
        for number, point in enumerate(place):
            text = str(number) if number < machine.nranks else machine.node(number)
            away = 1 if point[1] >= middle[1] else -1
            axes.annotate(
                text, point, xytext=(4, 6 * away), textcoords="offset points", fontsize=7,
                va="center",
            )  # fmt: skip


def draw_scaling(
    points: Sequence[tuple[str, float, float, float]], over: str, title: str, path: Path
) -> None:
    """Draw a sweep: time and busbw. ``points``: (algorithm, ranks or bytes, seconds, bytes/s).

    ``over``: "n" if points are by ranks, "b" if by bytes; ``title``: what was swept, and where.
    Raises what `check_figure` does.
    """
    checked(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    colours = colour_of(point[0] for point in points)
    for name in dict.fromkeys(point[0] for point in points):
        colour = colours[name]
        at, seconds, bus = np.array([p[1:] for p in points if p[0] == name]).T
        left.plot(at, seconds * 1e6, "o-", color=colour, label=name)
        right.plot(at, bus / 1e9, "o-", color=colour, label=name)
    for axes, label in ((left, "time"), (right, "busbw (GB/s)")):
        (ranks_axis if over == "n" else sizes_axis)(axes, {int(at) for _, at, _, _ in points})
        axes.set_ylabel(label)
        faint_grid(axes)
    times_axis(left)
    right.set_ylim(0, None)
    left.legend(frameon=False)
    figure.suptitle(title)
    save(figure, path, 150)
