"""Loss curves and compression, for records and as printed lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.steps.training.shared import LossPoint
from reports.records.shown import seconds

Facts = dict[str, Any]
Lines = list[str]


def curve_facts(points: Sequence[LossPoint]) -> Facts:
    """The curve, column by column."""
    columns = zip(*points, strict=True)
    names = ("seconds", "updates", "loss")
    return {"curve": dict(zip(names, map(list, columns), strict=True))} if points else {}


def curve_lines(points: Sequence[LossPoint]) -> Lines:
    """The loss at the start and at the end."""
    if not points:
        return ["    loss: no number from the start on; take a lower --rate"]
    first, last, best = points[0], points[-1], min(point.loss for point in points)
    line = (
        f"    loss: {first.loss:.4g} at the start, {last.loss:.4g} after {last.updates} updates in"
        f" {seconds(last.seconds)}"
    )
    return [line + (f", {best:.4g} at best" if best < 0.99 * last.loss else "")]


def compressed_lines(
    name: str, bits: float, what: str, off: float, encode: float, decode: float
) -> Lines:
    """Cost and error of compression; seconds. ``what`` has the relative error ``off``."""
    spent = f"encoding {seconds(encode)}" + (f", decoding {seconds(decode)}" if decode else "")
    return [
        f"    {name}: {bits:.3g} bits an element; {what} is off by {off:.2g} of its length;",
        f"      {spent}",
    ]


def relative_error(vector: NDArray[Any], exact: NDArray[Any]) -> float:
    """‖vector − exact‖/‖exact‖; 0 for zeros, inf where the vector has what is no number."""
    whole = float(np.linalg.norm(exact))
    off = float(np.linalg.norm(vector - exact))
    return (off / whole if whole else 0.0) if np.isfinite(off) else float("inf")
