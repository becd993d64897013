"""Training-step records: time per update by protocol and K, and loss curves.

Records may come from anywhere, so malformed parts are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from reports.analysis.step_figures import number, numbers
from reports.records.record import Result

__all__ = ["LossLine", "StepSummary", "summaries"]

#: Protocols that are another's at its least or most K.
_SAME = {"sync": "k-sync", "async": "k-async"}
#: Of fewer times no interval is told.
_FEWEST = 5


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
        number(step.get("predicted_s"), None),
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
    if not columns[0] or len({len(column) for column in columns}) > 1:
        return None
    return LossLine(*columns)
