"""The choice of figures for rows and training steps: ``busbar reports plot`` and the Python API."""

from __future__ import annotations

from collections.abc import Sequence

from reports.analysis.launches import over_launches
from reports.analysis.machine import MachinePart
from reports.analysis.steps import summaries
from reports.figures.plot import figures
from reports.figures.steps import bars, picture
from reports.records.measurement import STEP, Measurement


def every_figure(
    rows: Sequence[Measurement],
    steps: Sequence[Measurement],
    form: str,
    limit: float | None = None,
    machine: MachinePart | None = None,
) -> dict[str, bytes]:
    """Draw the figures of rows, and of the rows that have a `Step`. Returns contents by name.

    Sizes and busbw have no meaning for training steps: these have their own figures. Raises
    MissingLibrary without matplotlib, ReportError if there is nothing to draw.
    """
    others = [row for row in over_launches(rows) if not row.collective.startswith(STEP)]
    pictures = figures(others, form, limit, machine) if others or not steps else {}
    if any(one.family or one.loss for one in summaries(steps)):
        pictures["steps"] = picture(steps, form)
    if (drawn := bars(steps, form)) is not None:
        pictures["steps-exposed"] = drawn
    return pictures
