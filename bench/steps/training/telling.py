"""Loss curves and compression, as facts for the record and as printed lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.steps.training.codecs import Codec
from bench.steps.training.samples import LossPoint
from reports.records.shown import seconds

#: The error of a vector is estimated from so many elements at most, to save time.
MOST_CHECKED = 1 << 20
Facts = dict[str, Any]
Lines = list[str]


def curve_facts(points: Sequence[LossPoint]) -> Facts:
    """The loss curve as columns."""
    columns = zip(*points, strict=True)
    names = ("seconds", "updates", "loss")
    return {"curve": dict(zip(names, map(list, columns), strict=True))} if points else {}


def curve_lines(points: Sequence[LossPoint]) -> Lines:
    """A line with the loss at the start and at the end."""
    if not points:
        return ["    loss: no number from the start on; take a lower --rate"]
    first, last, best = points[0], points[-1], min(point.loss for point in points)
    line = (
        f"    loss: {first.loss:.4g} at the start, {last.loss:.4g} after {last.updates} updates in"
        f" {seconds(last.seconds)}"
    )
    return [line + (f", {best:.4g} at best" if best < 0.99 * last.loss else "")]


def compression(
    codec: Codec, elements: int, what: str, error: float, encode_s: float, decode_s: float
) -> tuple[Facts, Lines]:
    """The costs and the error of compressing so many elements.

    ``what``: ``sum`` or ``gradient``, which has this relative ``error``.
    """
    bits = 8 * codec.nbytes(elements) / elements
    facts = {
        "bits_per_element": bits,
        "encode_s": encode_s,
        "decode_s": decode_s,
        f"{what}_error": error if np.isfinite(error) else None,
    }
    times = f"encoding {seconds(encode_s)}"
    if decode_s:
        times += f", decoding {seconds(decode_s)}"
    size = f"{codec.name}: {bits:.3g} bits an element"
    return facts, [f"    {size}; a {what} is off by {error:.2g} of its length;", f"      {times}"]


def relative_error(vector: NDArray[Any], exact: NDArray[Any]) -> float:
    """‖vector − exact‖/‖exact‖; 0 for zeros, inf if an element of the vector is not finite."""
    length = float(np.linalg.norm(exact))
    error = float(np.linalg.norm(vector - exact))
    return (error / length if length else 0.0) if np.isfinite(error) else float("inf")
