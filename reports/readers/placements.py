"""Reads a placement of one of our records into a `Sample`, and checks its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import fsum, isfinite
from typing import Any

from reports.records.record import Sample

BYTES = ("sent", "received", "total")
_SAMPLE = {f.name for f in fields(Sample)}
_MOST = (1 << 63) - 1  # what a column of whole numbers holds

# What is taken for a time, in seconds, and for a rate, per second.
_LEAST_S, _MOST_S = 1e-15, 1e12
_LEAST_RATE, _MOST_RATE = 1e-12, 1e24


def placement(value: object) -> Sample | None:
    """A placement of a record; None where it has none. Raises ValueError."""
    if value is None:
        return None
    half = checked(value)
    known = {k: v for k, v in half.items() if k in _SAMPLE}
    told = {"times": tuple(half.get("times", ())), "per_rank": per_rank(half), "also": _also(half)}
    return Sample(**{**known, **told, "warm_up": tuple(half.get("warm_up", ()))})


def checked(half: object) -> dict[str, Any]:
    """A placement whose values are of the kinds that they should be. Raises ValueError."""
    if not isinstance(half, dict):
        raise ValueError("a placement is no object")
    for times in (half.get("times", []), half.get("warm_up", [])):
        _check_times(times)
    get = half.get
    for name in ("stopped", "skipped", "timing", "across", "checked"):
        if not isinstance(get(name, ""), str):
            raise ValueError(f"{name} is no text")
    for count in (get("iterations", 0), get("wrong") or 0):
        if not isinstance(count, int) or not 0 <= count <= _MOST:
            raise ValueError("iterations or wrong is no count")
    for name in BYTES:
        if type(get(name)) not in (int, type(None)) or not 0 <= (get(name) or 0) <= _MOST:
            raise ValueError(f"{name} is no number of bytes")
    if not isinstance(get("sync", {}), dict):
        raise ValueError("sync is no object")
    limit = get("limit")
    if limit is not None and not (isinstance(limit, (int, float)) and limit and is_time(limit)):
        raise ValueError("limit is no number of seconds")
    return half


def is_time(seconds: float) -> bool:
    """Whether anything took so long: from a femtosecond to 30,000 years, or no time at all.

    What lies beyond makes rates and pictures overflow.
    """
    return seconds == 0 or _LEAST_S <= seconds <= _MOST_S


def is_rate(per_second: float) -> bool:
    """Whether anything is so fast, in bytes or messages per second; 0 where a log rounds it."""
    return per_second == 0 or _LEAST_RATE <= per_second <= _MOST_RATE


def _check_times(times: object) -> None:
    if not isinstance(times, list):
        raise ValueError("times are not a list of seconds")
    try:
        least, most = min(times, default=0), max(times, default=0)
        if (
            isfinite(fsum(times))
            and is_time(most)
            and least >= 0
            and (least >= _LEAST_S or all(map(is_time, times)))
        ):
            return
    except (TypeError, OverflowError):
        pass
    raise ValueError("times are not a list of seconds")


def _also(half: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    found = half.get("also", {})
    if not isinstance(found, dict):
        raise ValueError("also is no object")
    for times in found.values():
        _check_times(times)
        if len(times) != len(half.get("times", ())):
            raise ValueError("also: another number of times than the placement")
    return {name: tuple(map(float, times)) for name, times in found.items()}


def per_rank(half: Mapping[str, Any]) -> tuple[tuple[float, ...], ...]:
    """Every rank's own times of a placement. Raises ValueError."""
    ranks = half.get("per_rank", [])
    if not isinstance(ranks, list):
        raise ValueError("per_rank is no list")
    for times in ranks:
        _check_times(times)
        if len(times) != len(half.get("times", ())):
            raise ValueError("per_rank: a rank has another number of times than the placement")
    return tuple(tuple(map(float, times)) for times in ranks)
