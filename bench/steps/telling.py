"""A curve of loss as a record keeps it, and as it is told in a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.steps.training.shared import LossPoint
from reports.records.shown import seconds

__all__ = ["Facts", "Lines", "curve_facts", "curve_lines"]

Facts = dict[str, Any]
Lines = list[str]


def curve_facts(points: Sequence[LossPoint]) -> Facts:
    """The curve, column by column."""
    columns = zip(*points, strict=True)
    names = ("seconds", "updates", "loss")
    return {"curve": dict(zip(names, map(list, columns), strict=True))} if points else {}


def curve_lines(points: Sequence[LossPoint]) -> Lines:
    """Where it began and where it ended."""
    if not points:
        return ["#   loss: no number from the start on; take a lower --rate"]
    first, last, best = points[0], points[-1], min(point.loss for point in points)
    line = (
        f"#   loss: {first.loss:.4g} at the start, {last.loss:.4g} after {last.updates} updates in"
        f" {seconds(last.seconds)}"
    )
    return [line + (f", {best:.4g} at best" if best < 0.99 * last.loss else "")]
