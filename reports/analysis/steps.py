"""Training-step records: what is derived of each, time per update by protocol and K, loss curves.

Records may come from anywhere, so malformed parts are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import fmean, median, stdev
from typing import Any

from busbar.statistics import interval
from reports.records.record import Result
from reports.statistics.quantities import center
from reports.statistics.uncertain import Uncertain, median_of

#: Protocols that are another's at its least or most K.
_SAME = {"sync": "k-sync", "async": "k-async"}
#: Fewer times have no interval.
_FEWEST = 5


@dataclass(frozen=True)
class StepFigures:
    """The quantities of a record of steps; seconds, None where a part was not measured.

    Each has its 95 % interval where there are enough iterations (`Uncertain`). ``step``: the
    median step, of a server's pace the mean. ``rate``: samples/s of all ranks. ``compute``: the
    same steps without exchange. ``exposed``: T_step - T_compute alone, of its median. ``hidden``:
    the share of the exchange, as long as it takes alone, that is not exposed; below 0 where overlap
    costs more. ``speedup``: over one rank, that is samples/s over what one rank's compute alone
    allows; ``efficiency``: that over the ranks. ``predicted``: the model's or the formula's step,
    and ``over_predicted`` the measured step over it.
    """

    step: Uncertain
    rate: Uncertain
    compute: float | None
    exposed: Uncertain | None
    hidden: Uncertain | None
    speedup: Uncertain | None
    efficiency: Uncertain | None
    predicted: float | None
    over_predicted: Uncertain | None


def figures(result: Result) -> StepFigures | None:
    """The figures of a record; None where there are no steps."""
    sample, step = result.out, result.step
    middle = None if sample is None else center(sample)
    if sample is None or not middle:
        return None
    # Back to back, times are of one pace: their mean is the time, and has an interval of its own.
    paced = sample.timing == "loop"
    between = numbers(step.get("interval_s")) if paced else interval(sample.times) or ()
    whole = Uncertain(middle, *(between if len(between) == 2 else ()))
    gradients = number(step.get("gradients")) or 1.0
    own, exchange = numbers(step.get("compute_s")), numbers(step.get("exchange_s"))
    exposed = _kept(step, "exposed") or _exposed(sample.times, own)
    compute = median(own) if own else None if exposed is None else middle - exposed.value
    hidden = speedup = None
    if step.get("compute") != "none":  # nothing hides behind nothing, nor is one rank's any rate
        alone = _kept(step, "one_rank")
        if exposed is not None and exchange and median(exchange) > 0:
            hidden = _hidden(exposed, median_of(exchange))
        if alone is not None and alone.value > 0:
            speedup = alone.over(whole).times(gradients)
    predicted = number(step.get("predicted_s")) or 0.0
    learners = number(step.get("learners")) or result.ranks
    return StepFigures(
        whole,
        whole.under(gradients * (number(step.get("batch")) or 1.0)),
        compute,
        exposed,
        hidden,
        speedup,
        None if speedup is None else speedup.times(1 / learners),
        predicted if predicted > 0 else None,
        whole.times(1 / predicted) if predicted > 0 else None,
    )


def _kept(step: Mapping[str, Any], name: str) -> Uncertain | None:
    """A figure that the record itself has, with its interval; None where it has none."""
    value = number(step.get(f"{name}_s"))
    ends = numbers(step.get(f"{name}_interval_s"))
    return None if value is None else Uncertain(value, *(ends if len(ends) == 2 else ()))


def _hidden(exposed: Uncertain, exchange: Uncertain) -> Uncertain:
    """The share of an exchange that is not exposed: 1 less the exposed part, at least 0."""
    share = exposed.over(exchange)
    if share.low is None or share.high is None:
        return Uncertain(min(1.0, 1 - share.value))
    return Uncertain(*(min(1.0, 1 - x) for x in (share.value, share.high, share.low)))


def _exposed(steps: Sequence[float], compute: Sequence[float]) -> Uncertain | None:
    """The median of the exposed seconds.

    Of as many steps as computes each is held against the compute of the same draw.
    """
    if not compute:
        return None
    if len(steps) != len(compute):
        return Uncertain(median(steps) - median(compute))
    return median_of([step - own for step, own in zip(steps, compute, strict=True)])


def number(value: object) -> float | None:
    """A finite number of a file, else None."""
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def numbers(values: object) -> tuple[float, ...]:
    """Finite numbers of a file; none where one of them is something else."""
    if not isinstance(values, list | tuple):
        return ()
    sound = [v for v in values if isinstance(v, int | float) and isfinite(v)]
    return tuple(map(float, sound)) if len(sound) == len(values) else ()


@dataclass(frozen=True)
class LossLine:
    """A curve of loss, column by column."""

    seconds: tuple[float, ...]
    updates: tuple[float, ...]
    loss: tuple[float, ...]


@dataclass(frozen=True)
class StepSummary:
    """One update of a run. ``name``: as it was asked for; ``title``: of what, by how many learners.

    ``family`` and ``k``: of a protocol; an all-reduce has none, and takes all ranks' gradients.
    ``seconds``: the mean time per update; ``wide``: half its 95 % interval, 0 where that is not
    known; ``predicted``: what was expected.
    """

    name: str
    title: str
    family: str | None
    k: int
    seconds: float
    wide: float
    predicted: float | None
    loss: LossLine | None


def summaries(results: Sequence[Result]) -> list[StepSummary]:
    """Those of the records that are steps and have times."""
    found = (_summary(result) for result in results if result.step)
    return [one for one in found if one is not None]


def _summary(result: Result) -> StepSummary | None:
    step, times = result.step, () if result.out is None else result.out.times
    if not times:
        return None
    name = str(step.get("update", result.algorithm))
    code = step.get("compress")
    kind, _, rest = name.partition(":")
    learners = step.get("learners")
    learners = learners if isinstance(learners, int) else result.ranks
    family, k = _family(kind, rest, learners)
    # Formulas are about means; the mean of many updates is normal.
    wide = 1.96 * stdev(times) / sqrt(len(times)) if len(times) > _FEWEST else 0.0
    # Times of a server depend on each other; the record has an interval that allows for it.
    ends = numbers(step.get("interval_s"))
    wide = (ends[1] - ends[0]) / 2 if len(ends) == 2 else wide
    law = "" if step.get("compute", "none") == "none" else f", compute {step['compute']}"
    return StepSummary(
        name if code is None else f"{name} {code}",
        f"{step.get('problem', step.get('model', ''))}, {learners} learners{law}",
        family,
        k,
        fmean(times),
        wide,
        number(step.get("predicted_s")),
        _loss(step.get("curve")),
    )


def _family(kind: str, rest: str, learners: int) -> tuple[str | None, int]:
    if kind in _SAME:
        return _SAME[kind], 1 if kind == "async" else learners
    if kind.startswith("k-") and rest.isdecimal():
        return kind, int(rest)
    return None, learners


def _loss(curve: Any) -> LossLine | None:
    if not isinstance(curve, Mapping):
        return None
    columns = [numbers(curve.get(name)) for name in ("seconds", "updates", "loss")]
    alike = columns[0] and len({len(column) for column in columns}) == 1
    return LossLine(*columns) if alike else None
