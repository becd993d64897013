"""Parses expectations: ``allreduce,>=64M: busbw >= 0.8*limit``, one by one or in YAML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from busbar.errors import MissingLibrary, ReportError
from busbar.files import read
from reports.analysis.expect import FIELDS, METRICS, Expectation, Selector, Threshold, parse_rate
from reports.readers import names

if TYPE_CHECKING:
    from yaml import Node

T = TypeVar("T")

_OPERATOR = r">=|<=|==|!=|≥|≤|>|<|="
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
_PLAIN = re.compile(rf"({_NUMBER})\s*([^\s\d*]*)", re.ASCII)
_LIMIT = re.compile(rf"({_NUMBER})?\s*(%?)\s*(?:\*|of)?\s*limit|limit\s*\*\s*({_NUMBER})", re.ASCII)
_ALIASES = {"latency": "time", "median": "time"}
_UNITS = {"µs": "us", "μs": "us", "Gb/s": "Gbit/s", "Gbps": "Gbit/s"}
_PLACES = {"in": "in", "out": "out", "in-place": "in", "out-of-place": "out"}
_PLACES |= {"inplace": "in", "outofplace": "out"}
_EXAMPLE = "'allreduce,>=64M: busbw >= 0.8*limit'"
_MOST_SIZE = 1 << 62
_MOST_BYTES = 1 << 20
_MOST_SAID = 400
# No rule is longer, and what is refused is quoted.
_MOST_TEXT = 500


def parse(text: str) -> Expectation:
    """A rule from its text. Raises ReportError that says which part is not understood."""
    if len(text) > _MOST_TEXT:
        raise ReportError(f"--expect: a rule of {len(text)} characters; at most {_MOST_TEXT}")
    selectors, _, rule = text.rpartition(":")
    try:
        text_, average = _AVERAGE.subn("", rule.strip())
        metric, bounds = _rule(text_)
        if average and any(bound.of_limit for bound in bounds):
            raise ValueError("an average has no limit; write it for each row")
        parts = filter(None, (p.strip() for p in selectors.split(",")))
        selected = tuple(one for part in parts for one in _selectors(part))
    except ValueError as error:
        raise ReportError(f"--expect {text!r}: {error}") from None
    return Expectation(text, selected, metric, bounds, bool(average))


def _rule(text: str) -> tuple[str, tuple[Threshold, ...]]:
    """Figure and bounds of what stands behind the colon. Raises ValueError."""
    ordered = _BETWEEN.sub(r"\2 <= \1 <= \3", text)
    parts = [p.strip() for p in re.split(f"({_OPERATOR})", ordered)]
    signs = [_ALSO.get(p, p) for p in parts[1::2]]
    if len(parts) == 3 and not re.fullmatch(r"[A-Za-z]\w*", parts[0]):
        parts, signs = parts[::-1], [_FLIPPED[signs[0]]]
    if len(parts) == 3:
        metric = _metric(parts[0])
        return metric, (_bound(metric, signs[0], parts[2]),)
    if len(parts) == 5:
        metric = _metric(parts[2])
        low = _bound(metric, _FLIPPED[signs[0]], parts[0])
        return metric, (low, _bound(metric, signs[1], parts[4]))
    raise ValueError(f"write SELECTORS: FIGURE >= VALUE, for example {_EXAMPLE}")


def _metric(text: str) -> str:
    metric = _ALIASES.get(text, text)
    if metric not in METRICS:
        raise ValueError(f"no figure {text!r}; there are {', '.join(METRICS)}")
    return metric


def _bound(metric: str, comparison: str, text: str) -> Threshold:
    """A bound: a number with its unit, or a share of the limit."""
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
    if not isfinite(value):
        raise ValueError(f"{text!r} is no finite number")
    return Threshold(comparison, value)


def _selectors(part: str) -> Iterator[Selector]:
    """The selection by one part between commas. Raises ValueError."""
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
    elif re.fullmatch(r"[\w*?|]+", part):
        yield _of_field(part, "collective", "==", part)
    else:
        raise ValueError(
            f"{part!r} selects nothing; use a collective, a size such as >=64M or 1K..64M,"
            f" in-place, or {', '.join(FIELDS)} with ="
        )


def _bytes(number: str, unit: str) -> int:
    """Bytes of ``64``, ``K``; units are binary, as everywhere. Raises ValueError."""
    value = float(number) * (1 << 10 * " KMGT".index(unit.upper() or " "))
    if value > _MOST_SIZE or value != int(value):
        raise ValueError(f"{number}{unit} are no bytes")
    return int(value)


def _of_field(text: str, name: str, comparison: str, value: str) -> Selector:
    """A selector of a name, or of a rank count. Raises ValueError."""
    if name == "ranks" and re.fullmatch(r"\d{1,9}", value, re.ASCII):
        return Selector(text, name, comparison, int(value))
    if comparison not in ("==", "!=") or (name == "ranks" and "|" not in value):
        what = "a number" if name == "ranks" else "= or !="
        raise ValueError(f"{text!r} selects nothing; {name} goes with {what}")
    alternatives = tuple(_named(name, one.strip()) for one in value.split("|"))
    return Selector(text, name, comparison, names=alternatives)


def _named(name: str, value: str) -> str:
    """A name as rows have it: ``all_reduce_perf`` is ``allreduce``, ``in-place`` is ``in``."""
    if name == "collective":
        return value.lower() if "*" in value or "?" in value else names.collective(value)
    if name == "dtype":
        return names.dtype(value)
    return _PLACES.get(value.lower(), value) if name == "placement" else value


def from_file(path: Path) -> tuple[list[Expectation], float | None]:
    """Rules, and a limit, from YAML: a list of rules, or ``expect:`` and ``limit:``.

    A rule without quotes is one too, although YAML takes its colon for a key's. Raises ReportError
    that names file and line.
    """
    try:
        import yaml
    except ImportError:
        raise MissingLibrary("PyYAML", str(path)) from None
    data = read(path, _MOST_BYTES, ReportError)
    try:
        # Nodes know their lines. Aliases are shared, never multiplied, and no tag builds anything.
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
        limit = _read(path, parts["limit"], parse_rate) if "limit" in parts else None
    if not isinstance(rules, yaml.SequenceNode) or not rules.value:
        where = _place(path, rules or root)
        raise ReportError(f"{where}: a list of rules is wanted, such as - {_EXAMPLE}")
    return [_read(path, node, parse) for node in rules.value], limit


def _place(path: Path, node: Node | None) -> str:
    return f"{path}:{node.start_mark.line + 1}" if node is not None else str(path)


def _read(path: Path, node: Node, reader: Callable[[str], T]) -> T:
    """A parsed text of YAML, or of a rule whose colon made a key of its first part."""
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
        cut = f"{why[:_MOST_SAID]}…" if len(why) > _MOST_SAID else why
        raise ReportError(f"{_place(path, node)}: {cut}") from None
