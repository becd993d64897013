"""Loss curves and compression, for records and as printed lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.steps.training.codecs import Codec
from bench.steps.training.shared import LossPoint
from busbar.units import format_seconds

#: The error of a vector is estimated from so many elements at most, which takes a moment.
MOST_CHECKED = 1 << 20
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
        f" {format_seconds(last.seconds)}"
    )
    return [line + (f", {best:.4g} at best" if best < 0.99 * last.loss else "")]


def compression(
    codec: Codec, elements: int, what: str, off: float, encode: float, decode: float
) -> tuple[Facts, Lines]:
    """The record's entry and the lines on what compressing so many elements costs, in seconds.

    ``what``, a sum or a gradient, has the relative error ``off``.
    """
    bits = 8 * codec.nbytes(elements) / elements
    facts = {
        "bits_per_element": bits,
        "encode_s": encode,
        "decode_s": decode,
        f"{what}_error": off if np.isfinite(off) else None,
    }
    spent = f"encoding {format_seconds(encode)}" + (
        f", decoding {format_seconds(decode)}" if decode else ""
    )
    error = f"a {what} is off by {off:.2g} of its length"
    return facts, [f"    {codec.name}: {bits:.3g} bits an element; {error};", f"      {spent}"]


def relative_error(vector: NDArray[Any], exact: NDArray[Any]) -> float:
    """‖vector − exact‖/‖exact‖; 0 for zeros, inf where the vector has what is no number."""
    whole = float(np.linalg.norm(exact))
    off = float(np.linalg.norm(vector - exact))
    return (off / whole if whole else 0.0) if np.isfinite(off) else float("inf")
