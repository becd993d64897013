"""Acceptance thresholds: parse rules, from texts or from YAML, and check rows against them.

A rule: ``allreduce,>=64M: busbw >= 0.8*limit``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import inf, isfinite
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, TypeVar

from busbar import units
from busbar.errors import MissingLibrary, ReportError
from busbar.files import read
from busbar.terminal import shorten
from busbar.units import format_seconds, format_size
from reports.readers import names
from reports.records.measurement import Measurement
from reports.records.metrics import named
from reports.statistics.quantities import of_limit

if TYPE_CHECKING:
    from yaml import Node


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
#: Figures that a rule may name: the field of a row, and the units that may be written.
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
#: The fields, besides the size, by which a rule selects rows.
FIELDS = ("collective", "algorithm", "transport", "placement", "dtype", "op", "ranks")
_MOST_NAMED = 8


@dataclass(frozen=True)
class Selector:
    """One condition that a row must meet for a rule to apply to it; ``text`` as it was written.

    ``name``: ``size`` or one of ``FIELDS``. ``bound``: the number that a size or a rank count is
    compared with. ``names``: for other fields, patterns (``*``, ``?``) of which one must match
    (with ``!=`` none).
    """

    text: str
    name: str
    comparison: str
    bound: int = 0
    names: tuple[str, ...] = ()

    def fits(self, row: Measurement) -> bool:
        """True if the row meets the condition."""
        value = _field(row, self.name)
        if self.names:
            matched = any(fnmatchcase(str(value), name) for name in self.names)
            return matched == (self.comparison == "==")
        return isinstance(value, int) and COMPARE[self.comparison](value, self.bound)


@dataclass(frozen=True)
class Threshold:
    """A bound: ``value`` in bytes/s, seconds or a share; if ``of_limit``, a share of the limit."""

    comparison: str
    value: float
    of_limit: bool = False


@dataclass(frozen=True)
class Expectation:
    """A rule: which rows it applies to, which figure it tests, and the bounds, all to be met.

    ``average``: the mean of the rows must meet the bounds, instead of each row.
    """

    text: str
    selectors: tuple[Selector, ...]
    metric: str
    bounds: tuple[Threshold, ...]
    average: bool = False

    def concerns(self, row: Measurement) -> bool:
        """True if the rule applies to the row."""
        return all(selector.fits(row) for selector in self.selectors)


@dataclass(frozen=True)
class Failure:
    """A row that breaks a rule of the expectations, or a rule that failed as a whole.

    ``row`` is None for a rule that applies to no row, or whose average over rows is off.
    """

    row: Measurement | None
    text: str

    @property
    def nodes(self) -> str:
        """The nodes that the row was measured on."""
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
    """``5%`` or ``0.05`` as 0.05. Raises ReportError, also for a number from 1 without %."""
    share = units.parse_quantity(text, {"%": 0.01})
    number = units.parse_quantity(text, {"": 1})
    if number is not None and 0 <= number < 1:
        return number
    if share is None or share == inf:
        remedy = "write per cent, as 5%"
        if number is not None and number < inf:
            percent = text.strip()
            remedy = f"it would be {100 * number:g} %: write {percent}% or {number / 100:g}"
        raise ReportError(f"{text!r} is no share; {remedy}")
    return share


def check(
    expectations: Sequence[Expectation], rows: Sequence[Measurement], limit: float | None = None
) -> list[Failure]:
    """The thresholds that are missed. A rule that applies to no row also fails: a test was lost.

    So does each of several names that no row has, as in ``algorithm=ring|tree``. ``limit`` is in
    bytes per second; without it each row's own measured limit is used. Raises ReportError if a rule
    needs a limit and none is known.
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
    """Messages on the part of a rule that no row matches, with the values that rows have."""
    if not mine:
        for selector in rule.selectors:
            if not any(map(selector.fits, rows)):
                there = _there_is(selector.name, rows)
                elsewhere = [replace(selector, name=name) for name in FIELDS if selector.names]
                meant = next((one for one in elsewhere if any(map(one.fits, rows))), None)
                if meant is not None and selector.comparison == "==":
                    there += f"; did you mean {meant.name}={'|'.join(meant.names)}?"
                return [f"no row matches {rule.text!r}: none has {selector.text} ({there})"]
        return [f"no row matches {rule.text!r}: none has all of that"]
    parts = []
    for selector in rule.selectors:
        if selector.comparison == "==" and len(selector.names) > 1:
            single = (replace(selector, names=(name,)) for name in selector.names)
            lost = [one.names[0] for one in single if not any(map(one.fits, mine))]
            parts += [f"no row with {selector.name}={n} matches {rule.text!r}" for n in lost]
    return parts


def _there_is(name: str, rows: Iterable[Measurement]) -> str:
    """The values of a field in the rows, in words; at most 8 of them."""
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
    """Why a row misses a bound of a rule; empty if it meets the bound."""
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
    """Why the mean of the rows misses bounds of a rule: a message per missed bound."""
    values = [getattr(row, METRICS[rule.metric][0]) for row in rows]
    if None in values:
        lost = next(row for row, value in zip(rows, values, strict=True) if value is None)
        return [f"{named(lost)}: {rule.metric} is not known, so no average of it is"]
    if not values:
        return []  # `_unspoken` reports it
    shown, mean = _shown(rule.metric), fmean(values)
    return [
        f"average {rule.metric} of {len(values)} rows is {shown(mean)},"
        f" wanted {bound.comparison} {shown(bound.value)}"
        for bound in rule.bounds
        if not COMPARE[bound.comparison](mean, bound.value)
    ]


def _bound(rule: Expectation, row: Measurement, value: float, limit: float | None) -> float:
    """The limit in bytes per second: ``limit``, or the row's rate at its least possible time."""
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


T = TypeVar("T")

_OPERATOR = r">=|<=|==|!=|≥|≤|>|<|="
_SIGNS = re.compile(r"[<>=!≥≤](?:\s*[<>=!≥≤])*")
_is_sign = re.compile(_OPERATOR).fullmatch
_ALSO = {"=": "==", "≥": ">=", "≤": "<="}
_FLIPPED = {">=": "<=", "<=": ">=", ">": "<", "<": ">", "==": "==", "!=": "!="}
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?"
_BYTES = r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?"
_SIZE = re.compile(rf"(?:size\s*)?({_OPERATOR})\s*{_BYTES}|{_BYTES}", re.IGNORECASE | re.ASCII)
_RANGE = re.compile(
    rf"(?:size\s*=?=?\s*)?{_BYTES}\s*(?:\.\.|-)\s*{_BYTES}", re.IGNORECASE | re.ASCII
)
_FIELD = re.compile(rf"({'|'.join(FIELDS)})\s*({_OPERATOR})\s*(.+)")
_RANKS = re.compile(r"(\d{1,9}) ranks?", re.ASCII)
_BETWEEN = re.compile(r"^(\w+)\s+between\s+(.+?)\s+and\s+(.+)$")
_AVERAGE = re.compile(r"\b(?:avg|average)\s+(?=[a-z])")
_PLAIN = re.compile(rf"(-?{_NUMBER})\s*([^\s\d*]*)", re.ASCII)
_LIMIT = re.compile(rf"({_NUMBER})?\s*(%?)\s*(?:\*|of)?\s*limit|limit\s*\*\s*({_NUMBER})", re.ASCII)
_ALIASES = {"latency": "time", "median": "time"}
_UNITS = {"µs": "us", "μs": "us", "Gb/s": "Gbit/s", "Gbps": "Gbit/s"}
_PLACES = {"in": "in", "out": "out", "in-place": "in", "out-of-place": "out"}
_PLACES |= {"inplace": "in", "outofplace": "out"}
_EXAMPLE = "'allreduce,>=64M: busbw >= 0.8*limit'"
_MOST_SIZE = 1 << 62
_MOST_BYTES = 1 << 20
_MOST_SAID = 400
# Most characters of a rule; errors quote the rule.
_MOST_TEXT = 500


def parse_rule(text: str) -> Expectation:
    """Parse a rule. Raises ReportError that says which part is not understood."""
    if len(text) > _MOST_TEXT:
        raise ReportError(f"--expect: a rule of {len(text)} characters; at most {_MOST_TEXT}")
    selectors, _, rule = text.rpartition(":")
    try:
        text_, average = _AVERAGE.subn("", rule.strip())
        metric, bounds = _parsed_rule(text_)
        if average and any(bound.of_limit for bound in bounds):
            raise ValueError("an average has no limit; write it for each row")
        parts = filter(None, (p.strip() for p in selectors.split(",")))
        selected = tuple(one for part in parts for one in _selectors(part))
    except ValueError as error:
        raise ReportError(f"--expect {text!r}: {error}") from None
    return Expectation(text, selected, metric, bounds, bool(average))


def _parsed_rule(text: str) -> tuple[str, tuple[Threshold, ...]]:
    """Figure and bounds in the text behind the colon. Raises ValueError."""
    odd = next((sign for sign in _SIGNS.findall(text) if not _is_sign(sign)), "")
    if odd:
        raise ValueError(f"{odd!r} is no comparison; there are {', '.join(COMPARE)}")
    ordered = _BETWEEN.sub(r"\2 <= \1 <= \3", text)
    parts = [p.strip() for p in re.split(f"({_OPERATOR})", ordered)]
    signs = [_ALSO.get(p, p) for p in parts[1::2]]
    if len(parts) == 3 and not re.fullmatch(r"[A-Za-z]\w*", parts[0]):
        parts, signs = parts[::-1], [_FLIPPED[signs[0]]]
    if len(parts) == 3:
        metric = _metric(parts[0])
        return metric, (_parsed_bound(metric, signs[0], parts[2]),)
    if len(parts) == 5:
        metric = _metric(parts[2])
        low = _parsed_bound(metric, _FLIPPED[signs[0]], parts[0])
        return metric, (low, _parsed_bound(metric, signs[1], parts[4]))
    raise ValueError(f"write SELECTORS: FIGURE >= VALUE, for example {_EXAMPLE}")


def _metric(text: str) -> str:
    metric = _ALIASES.get(text, text)
    if metric not in METRICS:
        raise ValueError(f"no figure {text!r}; there are {', '.join(METRICS)}")
    return metric


def _parsed_bound(metric: str, comparison: str, text: str) -> Threshold:
    """Parse a bound: a number with its unit, or a share of the limit. Raises ValueError."""
    limit = _LIMIT.fullmatch(text)
    if limit:
        if metric not in ("busbw", "algbw"):
            raise ValueError("a limit goes with busbw or algbw")
        share = float(limit.group(1) or limit.group(3) or 1)
        return Threshold(comparison, share / 100 if limit.group(2) else share, True)
    if "limit" in text:
        raise ValueError(f"{text!r} is no share of the limit; write 0.8*limit")
    match = _PLAIN.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is no number" if text else "a number is missing")
    units = METRICS[metric][1]
    scale = units.get(_UNITS.get(match.group(2), match.group(2)))
    if scale is None:
        listed = " or ".join(u for u in units if u) or "no unit"
        raise ValueError(f"{metric} is in {listed}, not {match.group(2) or 'a bare number'}")
    value = float(match.group(1)) * scale
    if value < 0 and metric != "overlap":
        raise ValueError(f"{metric} is never below 0")
    if not isfinite(value):
        raise ValueError(f"{text!r} is no finite number")
    return Threshold(comparison, value)


def _selectors(part: str) -> Iterator[Selector]:
    """The selectors written between two commas. Raises ValueError."""
    range_, size, field = _RANGE.fullmatch(part), _SIZE.fullmatch(part), _FIELD.fullmatch(part)
    ranks = _RANKS.fullmatch(part)
    if range_:
        yield Selector(part, "size", ">=", _bytes(*range_.groups()[:2]))
        yield Selector(part, "size", "<=", _bytes(*range_.groups()[2:]))
    elif size:
        sign, *compared = size.groups()
        number, unit = compared[:2] if sign else compared[2:]
        yield Selector(part, "size", _ALSO.get(sign, sign) if sign else "==", _bytes(number, unit))
    elif ranks:
        yield Selector(part, "ranks", "==", int(ranks.group(1)))
    elif field:
        name, sign, value = field.groups()
        yield _of_field(part, name, _ALSO.get(sign, sign), value.strip())
    elif part.lower() in _PLACES:
        yield Selector(part, "placement", "==", names=(_PLACES[part.lower()],))
    elif re.fullmatch(r"[\w*?|-]+", part):
        yield _of_field(part, "collective", "==", part)
    else:
        raise ValueError(
            f"{part!r} selects nothing; use a collective, a size such as >=64M or 1K..64M,"
            f" in-place, or {', '.join(FIELDS)} with ="
        )


def _bytes(number: str, unit: str) -> int:
    """A size such as ``64``, ``K`` in bytes; units are powers of 1024. Raises ValueError."""
    value = float(number) * (1 << 10 * " KMGT".index(unit.upper() or " "))
    if value > _MOST_SIZE or value != int(value):
        raise ValueError(f"{number}{unit} are no bytes")
    return int(value)


def _of_field(text: str, name: str, comparison: str, value: str) -> Selector:
    """The selector for a field with names or for the rank count. Raises ValueError."""
    if name == "ranks" and re.fullmatch(r"\d{1,9}", value, re.ASCII):
        return Selector(text, name, comparison, int(value))
    if comparison not in ("==", "!=") or (name == "ranks" and "|" not in value):
        what = "a number" if name == "ranks" else "= or !="
        raise ValueError(f"{text!r} selects nothing; {name} goes with {what}")
    alternatives = tuple(_named(name, one.strip()) for one in value.split("|"))
    return Selector(text, name, comparison, names=alternatives)


def _named(name: str, value: str) -> str:
    """A name as rows spell it: ``all_reduce_perf`` becomes ``allreduce``, ``in-place`` ``in``."""
    if name == "collective":
        return value.lower() if "*" in value or "?" in value else names.collective(value)
    if name == "dtype":
        return names.dtype(value)
    return _PLACES.get(value.lower(), value) if name == "placement" else value


def from_file(path: Path) -> tuple[list[Expectation], float | None]:
    """Read rules, and a limit, from YAML: a list of rules, or ``expect:`` and ``limit:``.

    Rules need no quotes, although YAML then parses them as a key and a value. Raises ReportError
    that names file and line.
    """
    try:
        import yaml
    except ImportError:
        raise MissingLibrary("PyYAML", str(path)) from None
    data = read(path, _MOST_BYTES, ReportError)
    try:
        # Nodes have line numbers. Aliases are shared, not copied, and tags construct no objects.
        root = yaml.compose(data, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ReportError(f"{path}{line}: no YAML: {error.problem or error.context}") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ReportError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    limit, rules = None, root
    if isinstance(root, yaml.MappingNode):
        for key, _ in root.value:
            if key.value not in ("expect", "limit"):
                raise ReportError(f"{_place(path, key)}: {key.value!r} is neither expect nor limit")
        parts = {key.value: value for key, value in root.value}
        rules = parts.get("expect")
        limit = _parsed_node(path, parts["limit"], parse_rate) if "limit" in parts else None
    if not isinstance(rules, yaml.SequenceNode) or not rules.value:
        where = _place(path, rules or root)
        raise ReportError(f"{where}: a list of rules is wanted, such as - {_EXAMPLE}")
    return [_parsed_node(path, node, parse_rule) for node in rules.value], limit


def _place(path: Path, node: Node | None) -> str:
    return f"{path}:{node.start_mark.line + 1}" if node is not None else str(path)


def _parsed_node(path: Path, node: Node, reader: Callable[[str], T]) -> T:
    """Parse a YAML text with ``reader``; a rule that YAML took for key and value is joined."""
    text = node.value
    if isinstance(text, list) and len(text) == 1 and isinstance(text[0], tuple):
        key, value = text[0]
        text = f"{key.value}: {value.value}"
    if not isinstance(text, str):
        raise ReportError(f"{_place(path, node)}: a rule is one text, such as {_EXAMPLE}")
    try:
        return reader(text)
    except ReportError as error:
        why = str(error).removeprefix("--expect ")
        raise ReportError(f"{_place(path, node)}: {shorten(why, _MOST_SAID)}") from None
