"""Runs, or campaigns of ``busbar qualify``, over time: series, change points, changed verdicts.

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
    """One run's point in a series: the median of its iterations in seconds, and the 95 % interval.

    If a run measured the same several times, all iterations count together. Without raw times it is
    the median of the rows' `reports.analysis.compare.cost` (the inverse of rates), no interval.
    """

    run: int
    value: float
    low: float | None
    high: float | None
    iterations: int


@dataclass(frozen=True)
class Series:
    """The points of all runs that measured the same, in the order of runs; ``row``: the latest row.

    ``cuts``: the change points, as places in ``points``. ``alarm``: set if the last points are
    unusual, but still too few to be called a change.
    """

    row: Measurement
    points: tuple[Point, ...]
    cuts: tuple[ChangePoint, ...]
    alarm: Alarm | None

    @property
    def metric(self) -> Metric:
        """The quantity of the points: the time, or a rate if the rows have no time."""
        return metric_of(self.row)

    def change(self, ratio: float) -> float:
        """Convert a ratio of costs to a ratio of the metric."""
        return self.metric.of_cost(ratio) or 0.0


@dataclass(frozen=True)
class History:
    """Names of the runs, their series, and by run number its differences to the run before."""

    runs: tuple[str, ...]
    series: tuple[Series, ...]
    differing: Mapping[int, tuple[Difference, ...]]


@dataclass(frozen=True)
class HistoryEvent:
    """All series that changed at one run, as (series, ratio, p); ``sure`` is False for alarms."""

    run: int
    changes: tuple[tuple[Series, float, float], ...]
    sure: bool


def in_order(
    runs: Sequence[tuple[str, Sequence[Measurement]]],
) -> list[tuple[str, Sequence[Measurement]]]:
    """Runs sorted by their start times; in the given order if any run has none."""

    def started(run: tuple[str, Sequence[Measurement]]) -> str:
        """The start in UTC as records write it; texts sort by time."""
        return str(run[1][0].run.environment.get("started", "")) if len(run[1]) else ""

    return sorted(runs, key=started) if all(map(started, runs)) else list(runs)


def history(runs: Sequence[tuple[str, Sequence[Measurement]]], noise: float = 0.01) -> History:
    """The series of the runs (name, rows), with changes by `reports.statistics.change_points`.

    Raises ReportError for fewer than two runs, or if no two of them measured the same.
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
    """Changes grouped by the run in which they appear; a run's alarms come after its changes."""
    changes: dict[tuple[int, bool], list[tuple[Series, float, float]]] = {}
    for s in h.series:
        for cut in s.cuts:
            changes.setdefault((s.points[cut.at].run, False), []).append((s, cut.ratio, cut.p))
        if s.alarm is not None:
            first = s.points[len(s.points) - s.alarm.runs].run
            changes.setdefault((first, True), []).append((s, s.alarm.ratio, s.alarm.p))
    return [HistoryEvent(key[0], tuple(changes[key]), not key[1]) for key in sorted(changes)]


GOOD = "good"
# Verdicts on hosts that could be measured.
_MEASURED = (GOOD, "slow")
_Subject = tuple[str, tuple[str, ...]]


class Change(NamedTuple):
    """Verdict on a host, link or uplink in each campaign, as text; empty if it was not tested."""

    subject: str
    verdicts: tuple[str, ...]


def verdict_changes(campaigns: Sequence[Qualified]) -> list[Change]:
    """The hosts, links and uplinks whose verdict differs between campaigns (in order of time)."""
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
    """The verdict on a subject; empty if it was not measured.

    A link or an uplink without a verdict is good if all its hosts took part and could be measured.
    """
    verdict = verdicts.get(subject)
    if verdict is None:
        if subject[0] == "host" or not set(subject[1]) <= set(each.hosts):
            return ""
        known = [verdicts.get(("host", (host,))) for host in subject[1]]
        return GOOD if all(one is None or one.state in _MEASURED for one in known) else ""
    ratio = f" (x{verdict.ratio:.2f})" if verdict.ratio and verdict.state == "slow" else ""
    return verdict.state + ratio
