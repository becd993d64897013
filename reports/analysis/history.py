"""Many runs, or campaigns of ``busbar qualify``, in order: series, change points, changed verdicts.

No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from busbar.errors import ReportError
from busbar.statistics import interval
from reports.analysis.compare import Difference, Key, by_key, differences, samples
from reports.readers.qualified import HostVerdict, Qualified
from reports.records.measurement import Measurement
from reports.records.metrics import Metric, metric_of
from reports.statistics.change_points import Alarm, ChangePoint, alarms, cuts


@dataclass(frozen=True)
class Point:
    """One run's point: the median of its iterations in seconds with its 95 % interval.

    Of a run with several rows of one kind all iterations together; without raw times the median of
    the figures (`reports.analysis.compare.cost`: of rates their inverse), and no interval.
    """

    run: int
    value: float
    low: float | None
    high: float | None
    iterations: int


@dataclass(frozen=True)
class Series:
    """Everything that measured the same, in the order of the runs; ``row``: its latest.

    ``cuts``: where it changed, places in ``points``. ``alarm``: the last points are out of the
    ordinary, but too few yet to be a change.
    """

    row: Measurement
    points: tuple[Point, ...]
    cuts: tuple[ChangePoint, ...]
    alarm: Alarm | None

    @property
    def metric(self) -> Metric:
        """What the points are of: the time, else the rate that the rows have."""
        return metric_of(self.row)

    def change(self, ratio: float) -> float:
        """A ratio of costs as one of the metric."""
        return self.metric.of_cost(ratio) or 0.0


@dataclass(frozen=True)
class History:
    """``differing``: by run, what it does not share with the run before."""

    runs: tuple[str, ...]
    series: tuple[Series, ...]
    differing: Mapping[int, tuple[Difference, ...]]


@dataclass(frozen=True)
class HistoryEvent:
    """All that changed with one run: (series, ratio, p); ``sure`` is False for alarms."""

    run: int
    changes: tuple[tuple[Series, float, float], ...]
    sure: bool


def in_order(
    runs: Sequence[tuple[str, Sequence[Measurement]]],
) -> list[tuple[str, Sequence[Measurement]]]:
    """Runs in the order in which they were started; as given where one does not say when."""

    def started(run: tuple[str, Sequence[Measurement]]) -> str:
        """UTC to the second, as records write it: the text has the order of the time."""
        return str(run[1][0].run.environment.get("started", "")) if len(run[1]) else ""

    return sorted(runs, key=started) if all(map(started, runs)) else list(runs)


def history(runs: Sequence[tuple[str, Sequence[Measurement]]], noise: float = 0.01) -> History:
    """The series of runs (name, rows) in their order, by `reports.statistics.change_points`.

    Raises ReportError for fewer than two runs, or when no two of them measured the same.
    """
    if len(runs) < 2:
        raise ReportError("a history needs two runs at least, in their order")
    points: dict[Key, list[Point]] = {}
    latest: dict[Key, Measurement] = {}
    for number, (_, rows) in enumerate(runs):
        for key, mine in by_key(rows).items():
            points.setdefault(key, []).append(_point(number, mine))
            latest[key] = mine[-1]
    points = {key: of_key for key, of_key in points.items() if len(of_key) > 1}
    if not points:
        raise ReportError("no two of these runs measured the same")
    values = [[(p.run, p.value) for p in of_key] for of_key in points.values()]
    changed = cuts(values, noise)
    alarmed = {alarm.series: alarm for alarm in alarms(values, changed, noise)}
    series = tuple(
        Series(latest[key], tuple(of_key), tuple(changed[n]), alarmed.get(n))
        for n, (key, of_key) in enumerate(points.items())
    )
    pairs = pairwise(runs)
    differing = {
        n: tuple(of_key)
        for n, ((_, before), (_, after)) in enumerate(pairs, 1)
        if (of_key := differences(before, after))
    }
    return History(tuple(name for name, _ in runs), series, differing)


def _point(run: int, rows: Sequence[Measurement]) -> Point:
    values = [t for one in samples(rows) for t in one]
    low, high = (interval(values) if rows[0].times_s else None) or (None, None)
    return Point(run, float(np.median(values)), low, high, len(values))


def events(h: History) -> list[HistoryEvent]:
    """Changes by the run in which they appear, in order; alarms of a run after its changes."""
    changes: dict[tuple[int, bool], list[tuple[Series, float, float]]] = {}
    for s in h.series:
        for cut in s.cuts:
            changes.setdefault((s.points[cut.at].run, False), []).append((s, cut.ratio, cut.p))
        if s.alarm is not None:
            first = s.points[len(s.points) - s.alarm.runs].run
            changes.setdefault((first, True), []).append((s, s.alarm.ratio, s.alarm.p))
    return [HistoryEvent(key[0], tuple(changes[key]), not key[1]) for key in sorted(changes)]


GOOD = "good"
_Subject = tuple[str, tuple[str, ...]]


class Change(NamedTuple):
    """A subject's verdict in each campaign, as text: empty where it was not among the hosts."""

    subject: str
    verdicts: tuple[str, ...]


def verdict_changes(campaigns: Sequence[Qualified]) -> list[Change]:
    """The subjects whose verdict is not the same in all campaigns, which are in their order."""
    by_subject = [
        {(v.kind, tuple(sorted(v.subject))): v for v in each.verdicts} for each in campaigns
    ]
    changes = []
    for subject in sorted({key for verdicts in by_subject for key in verdicts}):
        states = [
            _state(subject, verdicts, each)
            for verdicts, each in zip(by_subject, campaigns, strict=True)
        ]
        if len({state.partition(" ")[0] for state in states}) > 1:
            changes.append(Change(_name(subject), tuple(states)))
    return changes


def _name(subject: _Subject) -> str:
    kind, names = subject
    return " ".join(names) if kind == "host" else f"{kind} {' '.join(names)}"


def _state(subject: _Subject, verdicts: dict[_Subject, HostVerdict], each: Qualified) -> str:
    """The state of a subject; links and uplinks without a verdict are good."""
    verdict = verdicts.get(subject)
    if verdict is None:
        return GOOD if set(subject[1]) <= set(each.hosts) and subject[0] != "host" else ""
    ratio = f" (x{verdict.ratio:.2f})" if verdict.ratio and verdict.state == "slow" else ""
    return verdict.state + ratio
