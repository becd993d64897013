"""Formats sizes, times, rates and intervals, and a distribution as one line of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from reports.records.measurement import Measurement

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = ".:-=+*#@"
_MANY = 200
PLACEMENT = {"out": "out-of-place", "in": "in-place"}


def setting(row: Measurement) -> str:
    """The group of a row in words: everything but size and algorithm."""
    ranks = f"{row.ranks} ranks" if row.ranks else ""
    words = (row.collective or "unnamed collective", row.dtype, row.op, ranks, row.reading)
    return ", ".join(w for w in (*words, PLACEMENT[row.placement]) if w)


def named(row: Measurement) -> str:
    """A row in a few words: ``allreduce ring 64M out``."""
    words = (row.collective, row.algorithm, size_text(row.nbytes), row.placement)
    return " ".join(w for w in words if w)


def size_text(nbytes: int | None) -> str:
    """Bytes with a binary unit where that is exact (``64K``), else as they are."""
    if nbytes is None:
        return "?"
    value, unit = nbytes, ""
    for unit_ in ("K", "M", "G", "T"):
        if value < 1024 or value % 1024:
            break
        value, unit = value // 1024, unit_
    return f"{value}{unit}"


def seconds(value: float | None) -> str:
    """Three or four digits with the unit that suits."""
    if value is None:
        return "N/A"
    for scale, unit in ((1e-6, "us"), (1e-3, "ms")):
        if value < scale * 1000:
            return f"{digits(value / scale)} {unit}"
    return f"{digits(value)} s"


def rate(value: float | None) -> str:
    """GB/s, three digits, without the unit."""
    return "N/A" if value is None else digits(value / 1e9)


def digits(value: float) -> str:
    """A figure with three digits; from a thousand on as a whole number."""
    if abs(value) >= 999.5:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) < 0.1 else f"{value:#.3g}".rstrip(".")


def percent(value: float | None) -> str:
    """A share in per cent."""
    return "" if value is None else f"{100 * value:.1f}%"


def known(value: float | None, form: str | Callable[[float], str]) -> str:
    """A value in a format, or by a function; empty when it is not known."""
    if value is None:
        return ""
    return format(value, form) if isinstance(form, str) else form(value)


def chance(p: float) -> str:
    """A p value as ``p 0.02``; the tiniest are not told apart, for no model holds that far out."""
    return "p < 1e-9" if p < 1e-9 else f"p {p:.2g}"


def interval_text(low: float | None, high: float | None, middle: float | None) -> str:
    """An interval as per cent below and above the figure; empty when unknown."""
    if low is None or high is None or not middle:
        return ""
    below, above = 100 * (middle - low) / middle, 100 * (high - middle) / middle
    return f"-{_share(below)} +{_share(above)}%"


def _share(percent: float) -> str:
    """Tenths of a per cent, as long as they say something."""
    return f"{percent:.1f}" if percent < 99.95 else f"{percent:.0f}"


def sparkline(values: Sequence[float], width: int = 16, ascii_only: bool = False) -> str:
    """The histogram of values between their extremes, in ``width`` blocks, blank where none are."""
    if not values:
        return ""
    marks = _ASCII if ascii_only else _BLOCKS
    low, high = min(values), max(values)
    if high <= low:
        return marks[-1]
    if len(values) > _MANY:
        counts = np.histogram(values, width, (low, high))[0].tolist()
    else:  # several times as fast as numpy for the few values that a row has
        counts = [0] * width
        for value in values:
            counts[min(width - 1, int((value - low) / (high - low) * width))] += 1
    most = max(counts)
    return "".join(" " if not c else marks[-(-c * len(marks) // most) - 1] for c in counts)


def trend(values: Sequence[float], cuts: Sequence[int] = (), ascii_only: bool = False) -> str:
    """A block a value, as high as the value stands between the extremes, and ``|`` before cuts."""
    if not values:
        return ""
    marks = _ASCII if ascii_only else _BLOCKS
    low, high = min(values), max(values)
    scale = (len(marks) - 1) / (high - low) if high > low else 0.0
    return "".join(
        ("|" if n in cuts else "") + marks[round((v - low) * scale)] for n, v in enumerate(values)
    )
