"""Figures of a run for print and slides, by matplotlib: one file for each kind and row group.

Colours are Okabe and Ito's, which colour-blind readers can distinguish; markers differ too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from busbar.errors import ReportError
from reports.analysis.machine import MachinePart
from reports.figures.canvas import canvas, faint_grid, same_axes, saved
from reports.figures.plot_kinds import FIGURES, MOST_INSIDE, scaling
from reports.figures.series import Palette
from reports.records.cores import oversubscription
from reports.records.measurement import Measurement, grouped
from reports.records.metrics import is_measured
from reports.records.shown import PLACEMENT


def figures(
    rows: Sequence[Measurement],
    form: str = "png",
    limit: float | None = None,
    machine: MachinePart | None = None,
) -> dict[str, bytes]:
    """Name of a file to its content: one figure a kind and measured thing.

    An algorithm has one colour in all of them. ``limit`` (bytes per second) bounds busbw where a
    row has no limit of its own; ``machine`` adds a heat map for each matrix that was measured on
    it. Raises MissingLibrary without matplotlib, ReportError when there is nothing to draw.
    """
    drawn = [r for r in rows if is_measured(r)]
    palette = Palette.of(drawn)
    pictures: dict[str, bytes] = {}
    for words, group in _groups(drawn, ("collective", "dtype", "op", "ranks", "reading")).items():
        pictures |= _group(words, group, palette, form, limit)
    for words, group in _groups(drawn, ("collective", "dtype", "op", "reading")).items():
        figure = scaling(group, palette)
        if figure is not None:
            figure.suptitle(_title(words, group), fontsize=11)
            pictures[_file((*words, "scaling"))] = saved(figure, form)
    if machine is not None:
        from reports.figures.plot_matrix import heat_map

        for matrix in machine.matrices:
            pictures[_file(("matrix", matrix.name))] = saved(heat_map(matrix), form)
    if not pictures:
        raise ReportError("no row has a time or a rate to draw")
    return pictures


def _groups(
    rows: Sequence[Measurement], names: Sequence[str]
) -> dict[tuple[str, ...], list[Measurement]]:
    """Rows by what they measured, in words."""

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
    """The figures of one measured thing, a panel a placement."""
    pictures = {}
    placements = [p for p in PLACEMENT if any(r.placement == p for r in rows)]
    series = palette.series(rows)
    for kind, draw in FIGURES.items():
        # A legend below the axes takes room for its lines.
        high = 4.6 + (0.15 * len(series) if len(series) > MOST_INSIDE - 1 else 0)
        figure = canvas(6.4 * len(placements), high)
        panels = figure.subplots(1, len(placements), squeeze=False)[0]
        # Every series is handed to every panel, so that it keeps its style where it has no row.
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
        figure.suptitle(_title(words, rows), fontsize=11)
        pictures[_file((*words, kind))] = saved(figure, form)
    return pictures


def _title(words: Sequence[str], rows: Sequence[Measurement]) -> str:
    return ", ".join(w for w in (*words, oversubscription(rows)) if w)


def _file(words: Sequence[str]) -> str:
    return re.sub(r"[^\w.-]+", "-", "-".join(words))
