"""What is reported of a training, as facts for the record and as printed lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.steps.training.codecs import Codec
from bench.steps.training.problem import SharedProblem, TrainingProblem
from busbar.units import format_seconds as format_seconds

#: The error of a vector is estimated from so many elements at most, to save time.
MOST_CHECKED = 1 << 20
Facts = dict[str, Any]
Lines = list[str]
Vector = NDArray[Any]
# A comparison computes so many gradients at most, which takes some seconds.
_MOST_REPEATED = 20_000


class LossPoint(NamedTuple):
    """A point of a loss curve: seconds since the start, updates so far, the loss in nats."""

    seconds: float
    updates: int
    loss: float


def losses(
    problem: TrainingProblem,
    history: Sequence[tuple[int, Vector]],
    seconds: Callable[[int], float],
) -> list[LossPoint]:
    """The loss curve of a history; it ends before the first loss that is not finite.

    ``seconds``: when an update was made; 0 is the start.
    """
    points = []
    for updates, weights in history:
        loss = problem.loss(weights)
        if not np.isfinite(loss):
            break
        points.append(LossPoint(seconds(updates), updates, loss))
    return points


class Deviation(NamedTuple):
    """How far weights differ from those of one process after the same updates.

    ``updates``: how many. ``bits``: whether the weights are equal, bit by bit, to those of a
    process that adds the learners' gradients in order. ``part``: the largest difference from that
    process, over its largest weight. ``whole``: the same for a process that uses the whole batch at
    once, so that it adds in another order.
    """

    updates: int
    bits: bool
    part: float
    whole: float

    def lines(self, where: str = "") -> list[str]:
        """The printed lines. ``where``: how the weights of ranks compare."""
        part = "the same bits" if self.bits else f"within {self.part:.1g} of the largest"
        return [
            f"    weights after {self.updates} updates{where}",
            f"      as one process that adds in the order of ranks: {part}",
            f"      as one process with the whole batch at once: within {self.whole:.1g}",
        ]


def compare_with_one_process(
    training: SharedProblem, history: Sequence[tuple[int, Vector]]
) -> Deviation:
    """Compare weights of synchronous training with those of one process after as many updates.

    These are the last weights that are finite and that one process computes within seconds.
    ``history``: numbers of updates, and the weights after them.
    """
    updates, weights = [
        (count, weights)
        for count, weights in history
        if count * training.learners <= _MOST_REPEATED and np.isfinite(weights).all()
    ][-1]
    part, whole = training.alone(updates, False), training.alone(updates, True)
    largest = float(np.abs(part).max())
    differences = [float(np.abs(weights - alone).max()) / largest for alone in (part, whole)]
    return Deviation(updates, np.array_equal(weights, part), *differences)


def report_training(
    training: SharedProblem,
    history: Sequence[tuple[int, Vector]],
    seconds: Callable[[int], float],
    *,
    compare: bool,
    where: str = "",
) -> tuple[Facts, Lines]:
    """The loss curve, and with ``compare`` the deviation from one process.

    ``history``: numbers of updates, and the weights after them. ``seconds``: when an update was
    made; 0 is the start. ``where``: how the weights of ranks compare.
    """
    points = losses(training.problem, history, seconds)
    facts: Facts = {}
    lines = ["    loss: no number from the start on; take a lower --rate"]
    if points:
        columns = map(list, zip(*points, strict=True))
        facts["curve"] = dict(zip(LossPoint._fields, columns, strict=True))
        first, last, best = points[0], points[-1], min(point.loss for point in points)
        line = (
            f"    loss: {first.loss:.4g} at the start, {last.loss:.4g} after {last.updates} updates"
            f" in {format_seconds(last.seconds)}"
        )
        lines = [line + (f", {best:.4g} at best" if best < 0.99 * last.loss else "")]
    if compare:
        deviation = compare_with_one_process(training, history)
        facts["apart"] = deviation._asdict()
        lines += deviation.lines(where)
    return facts, lines


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
    times = f"encoding {format_seconds(encode_s)}"
    if decode_s:
        times += f", decoding {format_seconds(decode_s)}"
    size = f"{codec.name}: {bits:.3g} bits an element"
    return facts, [f"    {size}; a {what} is off by {error:.2g} of its length;", f"      {times}"]


def relative_error(vector: Vector, exact: Vector) -> float:
    """‖vector − exact‖/‖exact‖; 0 for zeros, inf if an element of the vector is not finite."""
    length = float(np.linalg.norm(exact))
    error = float(np.linalg.norm(vector - exact))
    return (error / length if length else 0.0) if np.isfinite(error) else float("inf")
