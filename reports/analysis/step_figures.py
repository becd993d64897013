"""Quantities of a record of training steps: exposed communication, samples/s, efficiency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median

from busbar.statistics import interval
from reports.records.record import Result
from reports.statistics.order import center

__all__ = ["StepFigures", "figures"]


@dataclass(frozen=True)
class StepFigures:
    """What is derived from a record of steps; seconds, None where a part was not measured.

    ``low``, ``high``: the 95 % interval of the median step, of a server's pace of the mean.
    ``rate``: samples/s of all ranks. ``exposed``: T_step - T_compute alone, with the 95 %
    interval of its median. ``hidden``: the share
    of the exchange, as long as it takes alone, that is not exposed; below 0 where overlap costs
    more.
    ``speedup``: over one rank, that is samples/s over what one rank's compute alone allows;
    ``efficiency``: that over the ranks.
    """

    step: float
    low: float | None
    high: float | None
    rate: float
    compute: float | None
    exposed: float | None
    between_exposed: tuple[float, float] | None
    hidden: float | None
    speedup: float | None
    efficiency: float | None


def figures(result: Result) -> StepFigures | None:
    """The figures of a record; None where there are no steps."""
    sample, step = result.out, result.step
    middle = None if sample is None else center(sample)
    if sample is None or not middle:
        return None
    # Back to back, times are of one pace: their mean is the time, and has an interval of its own.
    between = _numbers(step.get("interval_s")) if sample.timing == "loop" else ()
    between = between or interval(sample.times) or ()
    low, high = between if len(between) == 2 else (None, None)
    gradients = _number(step.get("gradients"), 1.0)
    rate = gradients * _number(step.get("batch"), 1.0) / middle
    compute, exchange = _middle(step.get("compute_s")), _middle(step.get("exchange_s"))
    between_exposed, exposed = _exposed(sample.times, _numbers(step.get("compute_s")))
    hidden = speedup = None
    if step.get("compute") != "none":  # nothing hides behind nothing, nor is one rank's any rate
        alone = _number(step.get("one_rank_s"), 0.0)
        if exposed is not None and exchange:
            hidden = min(1.0, 1 - exposed / exchange)
        if alone > 0 and compute:
            speedup = gradients * alone / middle
    efficiency = None if speedup is None else speedup / result.ranks
    return StepFigures(
        middle, low, high, rate, compute, exposed, between_exposed, hidden, speedup, efficiency
    )


def _exposed(
    steps: Sequence[float], compute: Sequence[float]
) -> tuple[tuple[float, float] | None, float | None]:
    """The interval of the exposed seconds, and their median.

    Of as many steps as computes each is held against the compute of the same draw.
    """
    if not compute:
        return None, None
    if len(steps) != len(compute):
        return None, median(steps) - median(compute)
    gaps = [step - own for step, own in zip(steps, compute, strict=True)]
    return interval(gaps), median(gaps)


def _middle(times: object) -> float | None:
    found = _numbers(times)
    return median(found) if found else None


def _number(value: object, otherwise: float) -> float:
    """A number of a file of anybody's."""
    return float(value) if isinstance(value, int | float) and isfinite(value) else otherwise


def _numbers(values: object) -> tuple[float, ...]:
    """Numbers of a file of anybody's; none where one of them is something else."""
    if not isinstance(values, list | tuple):
        return ()
    sound = [v for v in values if isinstance(v, int | float) and isfinite(v)]
    return tuple(map(float, sound)) if len(sound) == len(values) else ()
