"""Acceptance thresholds, checked against rows.

`reports.analysis.expect_text` parses them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import inf
from statistics import fmean

from busbar import units
from busbar.errors import ReportError
from busbar.units import format_seconds, format_size
from reports.records.measurement import Measurement
from reports.records.shown import named
from reports.statistics.quantities import of_limit

COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
#: Units of rates, in bytes per second; a bare number is in GB/s.
RATES: Mapping[str, float] = {**units.RATES, "": units.RATES["GB/s"]}
#: Figures: the field of a row, and the units in which they may be written.
METRICS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "busbw": ("busbw_bytes_per_s", RATES),
    "algbw": ("algbw_bytes_per_s", RATES),
    "time": ("time_s", units.SECONDS),
    "min": ("min_s", units.SECONDS),
    "max": ("max_s", units.SECONDS),
    "p99": ("p99_s", units.SECONDS),
    "wrong": ("wrong", {"": 1.0}),
    "cv": ("cv", {"%": 0.01}),
    "bandwidth": ("bandwidth_bytes_per_s", RATES),
    "message_rate": ("messages_per_s", {"messages/s": 1.0, "": 1.0}),
    "overall": ("overall_s", units.SECONDS),
    "compute": ("compute_s", units.SECONDS),
    "overlap": ("overlap", {"%": 0.01}),
}
#: What rows are selected by, beside their size.
FIELDS = ("collective", "algorithm", "transport", "placement", "dtype", "op", "ranks")
_MOST_NAMED = 8


@dataclass(frozen=True)
class Selector:
    """One of the things that a row must be for a rule to speak of it; ``text`` as it was written.

    ``name``: ``size`` or one of ``FIELDS``. ``bound``: the number that a size or a rank count is
    compared with; else ``names``: patterns (``*``, ``?``) of which one must match (with ``!=``
    none).
    """

    text: str
    name: str
    comparison: str
    bound: int = 0
    names: tuple[str, ...] = ()

    def fits(self, row: Measurement) -> bool:
        """Whether a row is so."""
        value = _field(row, self.name)
        if self.names:
            matched = any(fnmatchcase(str(value), name) for name in self.names)
            return matched == (self.comparison == "==")
        return isinstance(value, int) and COMPARE[self.comparison](value, self.bound)


@dataclass(frozen=True)
class Threshold:
    """``value`` in bytes per second, seconds or a share; ``of_limit`` times the limit."""

    comparison: str
    value: float
    of_limit: bool = False


@dataclass(frozen=True)
class Expectation:
    """A rule: what it speaks of, of which figure, and what that must keep, all of it.

    ``average``: the rows together must keep it, by their mean.
    """

    text: str
    selectors: tuple[Selector, ...]
    metric: str
    bounds: tuple[Threshold, ...]
    average: bool = False

    def concerns(self, row: Measurement) -> bool:
        """Whether a row is one that the rule speaks of."""
        return all(selector.fits(row) for selector in self.selectors)


@dataclass(frozen=True)
class Failure:
    """A row that does not keep a rule, or a rule that no row speaks to."""

    row: Measurement | None
    text: str

    @property
    def nodes(self) -> str:
        """The nodes that it was measured on."""
        return ", ".join(self.row.run.hosts) if self.row and self.row.run.hosts else "unknown nodes"


def _field(row: Measurement, name: str) -> str | int | None:
    if name == "size":
        return row.nbytes
    value: str | int | None = getattr(row, name)
    return value


def parse_rate(text: str) -> float:
    """``480GB/s`` or ``480`` as bytes per second. Raises ReportError."""
    rate = units.parse_quantity(text, RATES)
    if rate is None or not 0 < rate < inf:
        raise ReportError(f"{text!r} is no rate; write 480GB/s")
    return rate


def parse_share(text: str) -> float:
    """``5%`` as 0.05. Raises ReportError."""
    share = units.parse_quantity(text, {"%": 0.01})
    if share is None or share == inf:
        raise ReportError(f"{text!r} is no share; write per cent, as 5%")
    return share


def check(
    expectations: Sequence[Expectation], rows: Sequence[Measurement], limit: float | None = None
) -> list[Failure]:
    """The thresholds that are missed. A rule that applies to no row is missed too: a test was lost.

    The same holds of each of several names, as in ``algorithm=ring|tree``. ``limit`` is in bytes
    per second; without one a row's own measured limit is taken. Raises ReportError when a rule
    needs a limit that is nowhere known.
    """
    failures = []
    for rule in expectations:
        mine = [r for r in rows if rule.concerns(r)]
        failures += [Failure(None, text) for text in _unspoken(rule, rows, mine)]
        if rule.average:
            failures += [Failure(None, text) for text in _broken_on_average(rule, mine)]
            continue
        for row in mine:
            texts = (_broken(rule, bound, row, limit) for bound in rule.bounds)
            failures += [Failure(row, text) for text in filter(None, texts)]
    return failures


def _unspoken(
    rule: Expectation, rows: Sequence[Measurement], mine: Sequence[Measurement]
) -> list[str]:
    """The part of a rule that no row matches, with the values that there are."""
    if not mine:
        for selector in rule.selectors:
            if not any(map(selector.fits, rows)):
                there = _there_is(selector.name, rows)
                return [f"no row is spoken of by {rule.text!r}: none has {selector.text} ({there})"]
        return [f"no row is spoken of by {rule.text!r}: none has all of that"]
    parts = []
    for selector in rule.selectors:
        if selector.comparison == "==" and len(selector.names) > 1:
            single = (replace(selector, names=(name,)) for name in selector.names)
            lost = [one.names[0] for one in single if not any(map(one.fits, mine))]
            parts += [
                f"no row with {selector.name}={n} is spoken of by {rule.text!r}" for n in lost
            ]
    return parts


def _there_is(name: str, rows: Iterable[Measurement]) -> str:
    """The values that rows have, as far as they can be listed."""
    values = {v for v in (_field(row, name) for row in rows) if v not in (None, "")}
    if not values:
        return f"no row says its {name}"
    if name == "size":
        sizes = [v for v in values if isinstance(v, int)]
        return f"sizes are {format_size(min(sizes))} to {format_size(max(sizes))}"
    listed = sorted(values, key=lambda v: (str(type(v)), v))
    more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
    return f"there is {', '.join(map(str, listed[:_MOST_NAMED]))}{more}"


def _broken(rule: Expectation, bound: Threshold, row: Measurement, limit: float | None) -> str:
    """Why a row does not keep a bound of a rule; empty when it does."""
    wanted = bound.value
    value = getattr(row, METRICS[rule.metric][0])
    if bound.of_limit and value is not None:
        wanted *= _bound(rule, row, value, limit)
    what = named(row)
    if value is None:
        return f"{what}: {rule.metric} is not known{': ' + row.skipped if row.skipped else ''}"
    if COMPARE[bound.comparison](value, wanted):
        return ""
    shown = _shown(rule.metric)
    return f"{what}: {rule.metric} is {shown(value)}, wanted {bound.comparison} {shown(wanted)}"


def _broken_on_average(rule: Expectation, rows: Sequence[Measurement]) -> list[str]:
    """Why the mean of a rule's rows does not keep it: a bound each, or rows without the figure."""
    values = [getattr(row, METRICS[rule.metric][0]) for row in rows]
    if None in values:
        lost = next(row for row, value in zip(rows, values, strict=True) if value is None)
        return [f"{named(lost)}: {rule.metric} is not known, so no average of it is"]
    if not values:
        return []  # said by `_unspoken`
    shown, mean = _shown(rule.metric), fmean(values)
    return [
        f"average {rule.metric} of {len(values)} rows is {shown(mean)},"
        f" wanted {bound.comparison} {shown(bound.value)}"
        for bound in rule.bounds
        if not COMPARE[bound.comparison](mean, bound.value)
    ]


def _bound(rule: Expectation, row: Measurement, value: float, limit: float | None) -> float:
    """The limit in bytes per second: given, or what the row's rate would be in the least time."""
    if limit:
        return limit
    if row.limit_s and row.time_s:
        return value / of_limit(row.time_s, row.limit_s)
    raise ReportError(
        f"{rule.text!r} needs a limit, and none was measured at {format_size(row.nbytes)};"
        " give --limit 480GB/s, or select sizes that have one"
    )


def _shown(metric: str) -> Callable[[float], str]:
    if METRICS[metric][1] is units.SECONDS:
        return format_seconds
    if METRICS[metric][1] is RATES:
        return lambda v: f"{v / 1e9:.4g} GB/s"
    return (lambda v: f"{100 * v:.3g}%") if "%" in METRICS[metric][1] else (lambda v: f"{v:g}")
