"""Quantities as text, and text as quantities: seconds, rates, bytes, hertz, shares, digits, counts.

All numbers that Busbar shows are rounded and get their unit here. If a quantity is shown in several
ways, each way is a named style for `format_digits` or `TimeStyle`. Files of other programs have
other grammars; their readers use the factors in the tables below.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from math import floor, log10
from typing import NamedTuple

from busbar.errors import Unsupported

#: Factors of units, in bytes, seconds, bytes per second and bits.
BYTES: Mapping[str, int] = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
SECONDS: Mapping[str, float] = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "ns": 1e-9}
RATES: Mapping[str, float] = {
    "GB/s": 1e9,
    "MB/s": 1e6,
    "TB/s": 1e12,
    "GiB/s": float(1 << 30),
    "MiB/s": float(1 << 20),
    "Gbit/s": 1e9 / 8,
}
BITS: Mapping[str, float] = {"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}

MOST_RANKS = 1024
#: The largest size: no address space has more bytes.
MOST_BYTES = 2**48
_MOST_SIZES = 10_000
#: Ratio of the ends of an interval from which its upper end is not printed.
OPEN = 100.0
_MOST_DIGITS = 18

Digits = str | Callable[[float], str]
"""How a figure is rounded: a format specification such as ``.3g``, or a function."""

# Styles of figures.


def three_digits(value: float) -> str:
    """Return three significant digits; a whole number from 1000 on."""
    if abs(value) >= 999.5:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) < 0.1 else f"{value:#.3g}".rstrip(".")


def without_exponent(value: float) -> str:
    """Return three significant digits; a whole number from 100 on."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def five_characters(value: float) -> str:
    """Return up to four digits in at most five characters, for tables of 80 columns."""
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.4g}" if value >= 1 else f"{value:.3g}"


def seven_characters(value: float) -> str:
    """Return three significant digits in at most seven characters; two digits below 0.001."""
    if value < 0.001:
        return f"{value:.1e}" if value > 0 else "0.00"
    return f"{value:.{max(0, 2 - floor(log10(value)))}f}"


def two_decimals(value: float) -> str:
    """Return two decimals; three significant digits below 1, for slow links (100 Mbit/s)."""
    if not 0 < abs(value) < 1:
        return f"{value:.2f}"
    return f"{value:.{min(9, 2 - floor(log10(abs(value))))}f}"


def one_decimal(value: float) -> str:
    """Return one decimal; three significant digits below 1."""
    return f"{value:.1f}" if value >= 1 or not value else f"{value:#.3g}"


def format_digits(value: float | None, digits: Digits = three_digits) -> str:
    """Return a figure without a unit; empty for None."""
    if value is None:
        return ""
    return format(value, digits) if isinstance(digits, str) else digits(value)


# Seconds.


class TimeStyle(NamedTuple):
    """How a time is shown.

    ``digits``: how the number is rounded; ``units``: from the smallest to the largest; ``limit``:
    from this number on the next larger unit is used; ``zero``: the text for zero, if not empty.
    """

    digits: Digits = three_digits
    units: tuple[str, ...] = ("us", "ms", "s")
    limit: float = 1000
    zero: str = ""


#: Styles of measured times, of predictions (`collectives cost`) and of `collectives simulate`.
MEASURED = TimeStyle()
PREDICTED = TimeStyle(".3g", limit=999.5, zero="-")
SIMULATED = TimeStyle(".4g", ("ns", "us", "ms", "s"))


def format_seconds(value: float | None, style: TimeStyle = MEASURED) -> str:
    """Return seconds in a suitable unit: ``12.3 us``; ``N/A`` for None."""
    if value is None:
        return "N/A"
    if value < 0:
        return f"-{format_seconds(-value, style)}"
    if not value and style.zero:
        return style.zero
    *smaller, unit = style.units
    unit = next((u for u in smaller if value < style.limit * SECONDS[u]), unit)
    return f"{format_digits(value / SECONDS[unit], style.digits)} {unit}"


def format_duration(seconds: float) -> str:
    """Return seconds, minutes or hours: ``45 s``, ``3 min 05 s``, ``2 h 10 min``."""
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


# Rates, frequencies and shares.


def format_rate(value: float | None, digits: Digits = three_digits) -> str:
    """Return bytes per second in GB/s, without the unit; ``N/A`` for None."""
    return "N/A" if value is None else format_digits(value / 1e9, digits)


def format_frequency(value: float, digits: Digits = ".4g") -> str:
    """Return hertz in GHz: ``1.771 GHz``."""
    return f"{format_digits(value / 1e9, digits)} GHz"


def format_link_rate(value: float) -> str:
    """Return bytes per second as the rate of a link, in bits and three digits: ``200 Mbit/s``."""
    bits = 8 * value
    for unit, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if bits >= unit:
            return f"{bits / unit:.3g} {prefix}bit/s"
    return f"{bits:.3g} bit/s"


def format_percent(value: float | None, digits: Digits = ".1f") -> str:
    """Return a share in per cent: ``12.3%``; empty for None."""
    return "" if value is None else f"{format_digits(100 * value, digits)}%"


def format_change(ratio: float) -> str:
    """Return a ratio as a change in per cent: ``+12.3%`` for 1.123.

    From 10 on it is ``12.3x``, and below 0.01, where per cents tell little, ``0.00123x``.
    """
    return f"{100 * (ratio - 1):+.1f}%" if 0.01 <= ratio < 10 else f"{three_digits(ratio)}x"


def format_change_interval(ratio: float, low: float, high: float) -> str:
    """Return the interval of a ratio in the unit that `format_change` gives the ratio.

    ``-1.2 +3.4%``; ``566x 901x`` for a ratio of 10 or more, or below 0.01, or if the upper end is
    100 or more. ``-``: see `is_open`.
    """
    if is_open(low, high):
        return "-"
    if max(10 * ratio, high) >= 100 or ratio < 0.01:
        return f"{three_digits(low)}x {three_digits(high)}x"
    changes = (100 * (low - 1), 100 * (high - 1))
    return " ".join(f"{one:+.{'1f' if one < 999.95 else '0f'}}" for one in changes) + "%"


def format_p_value(p: float) -> str:
    """Return a p value as ``p 0.02``; below 1e-9, where models do not hold, ``p < 1e-9``."""
    return "p < 1e-9" if p < 1e-9 else f"p {p:.2g}"


def is_open(low: float, high: float) -> bool:
    """True if the ends of an interval are so far apart that the upper one means nothing."""
    return high >= OPEN * low


def format_interval(low: float | None, high: float | None, middle: float | None) -> str:
    """Return an interval as per cent below and above ``middle``; empty if it is unknown.

    An upper end of ten times ``middle`` or more is shown as a factor: ``-1.2% +16x``. ``-``: the
    ends are a factor of 100 or more apart (`is_open`). ``<0.1%``: both are nearer than that.
    """
    if low is None or high is None or not middle:
        return ""
    if is_open(low, high):
        return "-"
    below, above = 100 * (middle - low) / middle, 100 * (high - middle) / middle
    if max(below, above) < 0.05:  # -0.0 +0.0 would look exact
        return "<0.1%"
    if high >= 10 * middle:
        return f"-{below:.1f}% +{three_digits(high / middle)}x"
    return f"-{below:.1f} +{above:.{'1f' if above < 99.95 else '0f'}}%"


def format_count(number: int | None, noun: str) -> str:
    """Return a number of things: ``1 rank``, ``2 ranks``, ``3 launches``; ``? ranks`` for None."""
    if number == 1:
        return f"1 {noun}"
    return f"{'?' if number is None else number} {noun}{'es' if noun.endswith('ch') else 's'}"


# Verbs as they stand behind several things, and behind one.
_OF_ONE = {"are": "is", "have": "has", "were": "was", "vary": "varies", "drift": "drifts"}


def agreeing(number: int, words: str) -> str:
    """Return words that begin with a verb of several things, for ``number`` of them.

    ``are slower``, or ``is slower`` for one.
    """
    verb, space, rest = words.partition(" ")
    return f"{_OF_ONE.get(verb, verb)}{space}{rest}" if number == 1 else words


def format_part(part: int, of: int, noun: str, words: str) -> str:
    """Return what is true of a part: ``2 of 9 rows are slower``, or ``1 of 9 rows is slower``."""
    return f"{part} of {format_count(of, noun)} {agreeing(part, words)}"


def format_ranks(ranks: int | None) -> str:
    """Return ``1 rank``, ``2 ranks``; empty if the number is not known."""
    return format_count(ranks, "rank") if ranks else ""


# Bytes.


def format_bytes(nbytes: float) -> str:
    """Return bytes in four digits with a binary unit: ``1 GiB``, ``33.2 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


def format_size(nbytes: int | None) -> str:
    """Return bytes with a binary unit if that is exact (``64K``), else the number of bytes."""
    if nbytes is None:
        return "?"
    value, unit = nbytes, ""
    for larger in "KMGT":
        if value < 1024 or value % 1024:
            break
        value, unit = value // 1024, larger
    return f"{value}{unit}"


def format_size_range(low: int, high: int) -> str:
    """Return a range of sizes in words: ``at 4K``, or ``from 4K to 1M``."""
    first, last = format_size(low), format_size(high)
    return f"at {first}" if first == last else f"from {first} to {last}"


def format_size_argument(nbytes: int) -> str:
    """Return bytes in three digits, in the form that options accept: ``64K``, ``1.5M``."""
    value, unit = float(nbytes), ""
    for larger in "KMGT":
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g}{unit}" if value >= 1000 else f"{value:.3g}{unit}"


# Text to quantities.


def parse_size(text: str) -> int:
    """Return the bytes of ``1M``, ``64k``, ``4096``, ``1.5K``; parts of a byte are cut off.

    Raises Unsupported for anything else, and for a fraction without a unit.
    """
    if re.match(r"\s*-\s*[\d.]", text):
        raise Unsupported(f"{text[:40]}: a size cannot be negative")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)([iI]?)(B?|b)\s*", text)
    if not match:
        raise Unsupported(f"{text[:40]!r} is no size; write bytes or 64K, 1M, 1G (binary)")
    if match[4] == "b" and not (match[3] and text.islower()):  # mib is MiB in haste
        meant = f"{match[1]}{match[2].upper()}"
        raise Unsupported(f"{text[:40]}: sizes are bytes, and b is bits; {meant} is bytes (binary)")
    value = float(match[1]) * BYTES[match[2].upper()]
    if not match[2] and not value.is_integer():
        raise Unsupported(f"{text[:40]!r} is no whole number of bytes; write bytes or 1.5K, 1M")
    if value > MOST_BYTES:
        most = format_size_argument(MOST_BYTES)
        raise Unsupported(f"{text[:40]} is more than any memory has; sizes go to {most}")
    return int(value)


def parse_quantity(text: str, units: Mapping[str, float]) -> float | None:
    """Return a number with one of ``units`` in the base unit: ``5ms`` with SECONDS is 0.005.

    None for any other text and for too large numbers. A unit ``""`` allows numbers without a unit.
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([^\s0-9.]*)", text.strip(), re.ASCII)
    value = float(match[1]) * units[match[2]] if match and match[2] in units else math.inf
    return value if math.isfinite(value) else None


def sweep_sizes(low: int, high: int, *, factor: float | None, step: int | None) -> list[int]:
    """Return the sizes from ``low`` to ``high``, multiplied by ``factor`` or increased by ``step``.

    Raises Unsupported if the sweep is empty, has too many sizes or would not advance.
    """
    if low > high:
        raise Unsupported(
            f"-b {format_bytes(low)} is above -e {format_bytes(high)}; give both, the least first"
        )
    if step is not None:
        if step < 1:
            raise Unsupported(f"-i {step} does not advance; give an increment of at least 1")
        if (high - low) // step >= _MOST_SIZES:
            raise Unsupported(
                f"-i {step} makes {(high - low) // step + 1} sizes; give a larger increment, or -f"
            )
        return list(range(low, high + 1, step))
    factor = 2.0 if factor is None else factor
    if not 1 < factor < float("inf"):
        if low == high:
            return [low]
        raise Unsupported(f"-f {factor:g} does not advance; give a factor above 1")
    sizes: list[int] = []
    size = float(low)
    while size <= high:
        if not sizes or int(size) > sizes[-1]:
            sizes.append(int(size))
        if len(sizes) > _MOST_SIZES:
            raise Unsupported(
                f"-f {factor:.15g} makes more than {_MOST_SIZES} sizes; give a larger one"
            )
        size = max(size * factor, size + 1)
    return sizes


def parse_ranks(text: str, most: int = MOST_RANKS, flag: str = "-n") -> list[int]:
    """Return the rank counts of ``2-8,16``. Raises Unsupported unless all are 1 to ``most``.

    ``flag``: the option, for the message.
    """
    counts: list[int] = []
    for part in text.split(","):
        span = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part, re.ASCII)
        if span is None:
            raise Unsupported(
                f"{flag} {text[:80]}: {part[:40]!r} is no rank count; write 8, or 2-8,16"
            )
        ends = [end or span[1] for end in span.groups()]
        if max(map(len, ends)) > _MOST_DIGITS or int(ends[1]) > most:
            raise Unsupported(f"{flag} {text[:80]}: rank counts go from 1 to {most}")
        if int(ends[0]) > int(ends[1]):
            raise Unsupported(f"{flag} {text[:80]}: {part[:40]!r} falls; write {ends[1]}-{ends[0]}")
        counts += range(int(ends[0]), int(ends[1]) + 1)
    if not counts or min(counts) < 1:
        raise Unsupported(f"{flag} {text[:80]}: rank counts go from 1 to {most}")
    return counts
