"""Thresholds for acceptance: ``allreduce,>=64M: busbw >= 0.8*limit``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reports.errors import MissingLibrary, ReportError
from reports.quantities import of_limit
from reports.readers.rows import Row
from reports.shown import seconds, size_text

__all__ = ["Expectation", "Failure", "check", "from_file", "parse", "parse_rate", "parse_share"]

_MOST_BYTES = 1 << 20
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "=": operator.eq,
}
_METRICS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "busbw": ("busbw_bytes_per_s", {"GB/s": 1e9, "MB/s": 1e6, "": 1e9}),
    "algbw": ("algbw_bytes_per_s", {"GB/s": 1e9, "MB/s": 1e6, "": 1e9}),
    "time": ("time_s", {"us": 1e-6, "ms": 1e-3, "s": 1.0}),
    "p99": ("p99_s", {"us": 1e-6, "ms": 1e-3, "s": 1.0}),
    "wrong": ("wrong", {"": 1.0}),
    "cv": ("cv", {"%": 0.01}),
}
_FIELDS = ("collective", "algorithm", "transport", "placement", "dtype", "op", "ranks")
_SIZE = re.compile(r"(>=|<=|>|<|==?)\s*(\d{1,15})([KMGT]?)$")
_RULE = re.compile(
    r"(\w+)\s*(>=|<=|>|<|==?)\s*(\d+(?:\.\d+)?)?\s*([A-Za-z%/]*)\s*(\*?)\s*(limit)?$"
)


@dataclass(frozen=True)
class Expectation:
    """A rule. ``value`` is in bytes per second, seconds or a share; ``of_limit`` times the limit."""

    text: str
    sizes: tuple[tuple[str, int], ...]
    fields: tuple[tuple[str, str], ...]
    metric: str
    comparison: str
    value: float
    of_limit: bool

    def concerns(self, row: Row) -> bool:
        """Whether a row is one that the rule speaks of."""
        size = row.size if row.size is not None else row.message
        fits = all(size is not None and _COMPARE[c](size, bound) for c, bound in self.sizes)
        return fits and all(str(getattr(row, name)) == value for name, value in self.fields)


@dataclass(frozen=True)
class Failure:
    """A row that does not keep a rule, or a rule that no row speaks to."""

    expectation: Expectation
    row: Row | None
    text: str

    @property
    def nodes(self) -> str:
        """Where it was measured."""
        return ", ".join(self.row.run.hosts) if self.row and self.row.run.hosts else "unknown nodes"


def parse(text: str) -> Expectation:
    """A rule from its text. Raises ReportError that says which part is not understood."""
    selectors, _, rule = text.rpartition(":")
    found = _RULE.match(rule.strip())
    if not found:
        raise ReportError(f"--expect {text!r}: write SELECTORS: METRIC >= VALUE, for example"
                          " 'allreduce,>=64M: busbw >= 0.8*limit'")  # fmt: skip
    metric, comparison, number, unit, _, limit = found.groups()
    if metric == "latency":
        metric = "time"
    if metric not in _METRICS:
        raise ReportError(
            f"--expect {text!r}: no figure {metric!r}; there are {', '.join(_METRICS)}"
        )
    if number is None and not limit:
        raise ReportError(f"--expect {text!r}: a number is missing")
    if limit and (unit or metric not in ("busbw", "algbw")):
        raise ReportError(f"--expect {text!r}: a limit goes with busbw or algbw, without a unit")
    scale = 1.0 if limit else _METRICS[metric][1].get(unit)
    if scale is None:
        units = " or ".join(u for u in _METRICS[metric][1] if u) or "no unit"
        raise ReportError(
            f"--expect {text!r}: {metric} is in {units}, not {unit or 'a bare number'}"
        )
    sizes, fields = _selectors(text, selectors)
    value = float(number or 1) * scale
    return Expectation(text, sizes, fields, metric, comparison, value, bool(limit))


def _selectors(
    text: str, selectors: str
) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, str], ...]]:
    sizes, fields = [], []
    for part in filter(None, (p.strip() for p in selectors.split(","))):
        size = _SIZE.match(part)
        name, equals, value = part.partition("=")
        if size:
            comparison, number, unit = size.groups()
            sizes.append((comparison, int(number) << 10 * " KMGT".index(unit or " ")))
        elif equals and name.strip() in _FIELDS:
            fields.append((name.strip(), value.strip()))
        elif re.fullmatch(r"\w+", part):
            fields.append(("collective", part))
        else:
            raise ReportError(f"--expect {text!r}: {part!r} selects nothing; use a collective, a"
                              f" size such as >=64M, or {', '.join(_FIELDS)} with =")  # fmt: skip
    return tuple(sizes), tuple(fields)


def from_file(path: Path) -> tuple[list[Expectation], float | None]:
    """Rules, and a limit, from YAML: a list of rules, or ``expect:`` and ``limit:``.

    Raises ReportError.
    """
    try:
        import yaml
    except ImportError:
        raise MissingLibrary("PyYAML", str(path)) from None
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ReportError(f"{path}: more than {_MOST_BYTES} bytes; no list of rules is")
        document = yaml.safe_load(data)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ReportError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    limit = None
    if isinstance(document, dict):
        unknown = [str(k) for k in document if k not in ("expect", "limit")]
        if unknown:
            raise ReportError(f"{path}: {unknown[0]!r} is neither expect nor limit")
        limit = None if document.get("limit") is None else parse_rate(str(document["limit"]))
        document = document.get("expect")
    if not isinstance(document, list) or not all(isinstance(rule, str) for rule in document):
        raise ReportError(f"{path}: a list of rules is wanted, each a text in quotes")
    return [parse(rule) for rule in document], limit


def parse_rate(text: str) -> float:
    """``480GB/s`` or ``480`` as bytes per second. Raises ReportError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(GB/s|MB/s|)", text.strip())
    if not found or not float(found.group(1)):
        raise ReportError(f"{text!r} is no rate; write 480GB/s")
    return float(found.group(1)) * (1e6 if found.group(2) == "MB/s" else 1e9)


def parse_share(text: str) -> float:
    """``5%`` as 0.05. Raises ReportError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if not found:
        raise ReportError(f"{text!r} is no share; write per cent, as 5%")
    return float(found.group(1)) / 100


def check(
    expectations: Sequence[Expectation], rows: Sequence[Row], limit: float | None = None
) -> list[Failure]:
    """What is not kept. A rule that no row speaks to is not kept either: it would hide a lost test.

    ``limit`` is in bytes per second; without one a row's own measured limit is taken. Raises
    ReportError when a rule needs a limit that is nowhere known.
    """
    failures = []
    for rule in expectations:
        mine = [r for r in rows if rule.concerns(r)]
        if not mine:
            failures.append(Failure(rule, None, f"no row is spoken of by {rule.text!r}"))
        for row in mine:
            text = _broken(rule, row, limit)
            if text:
                failures.append(Failure(rule, row, text))
    return failures


def _broken(rule: Expectation, row: Row, limit: float | None) -> str:
    """Why a row does not keep a rule; empty when it does."""
    wanted = rule.value
    value = getattr(row, _METRICS[rule.metric][0])
    if rule.of_limit and value is not None:
        wanted *= _bound(rule, row, value, limit)
    size = size_text(row.size if row.size is not None else row.message)
    what = " ".join(w for w in (row.collective, row.algorithm, size, row.placement) if w)
    if value is None:
        return f"{what}: {rule.metric} is not known{': ' + row.skipped if row.skipped else ''}"
    if _COMPARE[rule.comparison](value, wanted):
        return ""
    shown = _shown(rule.metric)
    return f"{what}: {rule.metric} is {shown(value)}, wanted {rule.comparison} {shown(wanted)}"


def _bound(rule: Expectation, row: Row, value: float, limit: float | None) -> float:
    """The limit in bytes per second: given, or what the row's rate would be in the least time."""
    if limit:
        return limit
    if row.limit_s and row.time_s:
        return value / of_limit(row.time_s, row.limit_s)
    size = size_text(row.size if row.size is not None else row.message)
    raise ReportError(
        f"{rule.text!r} needs a limit, and none was measured at {size}; give --limit 480GB/s, or"
        " select sizes that have one"
    )


def _shown(metric: str) -> Callable[[float], str]:
    if metric in ("time", "p99"):
        return seconds
    if metric == "cv":
        return lambda v: f"{100 * v:.3g}%"
    return (lambda v: f"{v:g}") if metric == "wrong" else (lambda v: f"{v / 1e9:.4g} GB/s")
