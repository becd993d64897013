"""Whether the printed figures of a row agree: size, time, algbw and busbw depend on each other.

algbw = size / time and busbw = algbw x bus factor (nccl-tests, doc/PERFORMANCE.md). A row whose
figures do not agree was cut, shifted or changed after it was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from math import inf, isfinite
from typing import NamedTuple

from reports.readers import names

# Beyond the printed digits: figures that are written with all their digits were computed in
# floating point.
_SLACK = 1e-6
_MOST_DIGITS = 400


class Printed(NamedTuple):
    """The values that a printed figure may stand for."""

    low: float
    high: float

    def scaled(self, factor: float) -> Printed:
        """The span in another unit; ``factor`` is positive."""
        return Printed(self.low * factor, self.high * factor)

    def meets(self, other: Printed) -> bool:
        """Whether some value is in both."""
        slack = _SLACK * min(abs(self.high), abs(other.high))
        return self.low <= other.high + slack and other.low <= self.high + slack


def span(text: str) -> Printed | None:
    """The values that round or truncate to a printed figure; None where it is no finite number.

    The span reaches one unit of the last digit to both sides.
    """
    try:
        value = Decimal(text.rstrip("*")[:_MOST_DIGITS])
    except InvalidOperation:
        return None
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or not isfinite(float(value)):
        return None
    unit = 10.0 ** min(max(exponent, -300), 300)
    return Printed(float(value) - unit, float(value) + unit)


def contradiction(
    size: int | None, time: Printed | None, algbw: str, busbw: str, factor: float | None
) -> str:
    """Why the figures of a row cannot belong together; empty where they can.

    ``size`` in bytes, ``time`` in seconds (None: not what algbw was computed from), ``algbw`` and
    ``busbw`` in GB/s as printed, ``factor``: the bus factor, None where it is not known.
    """
    rate, bus = span(algbw), span(busbw)
    if rate is None:
        return ""
    if time is not None and size is not None:
        least = size / time.high if time.high > 0 else inf
        most = size / time.low if time.low > 0 else inf
        if not Printed(least, most).meets(rate.scaled(1e9)):
            return f"algbw {algbw} is not its size / time"
    if bus is not None and factor is not None and not rate.scaled(factor or 0.0).meets(bus):
        return f"busbw {busbw} is not algbw {algbw} x {factor:.4g}"
    return ""


class Agreed(NamedTuple):
    """The ranks of a table and its bus factor; ``note``: what is odd about them, else empty."""

    ranks: int | None
    factor: float | None
    note: str = ""


def agreed(collective: str, rates: Sequence[tuple[str, str]], listed: int | None) -> Agreed:
    """The ranks by a list of devices (``listed``) and by the printed pairs (algbw, busbw).

    The rates count where they contradict the list: who pastes a log may cut it, and of a world in
    groups it has all ranks. What most pairs agree on counts, for a single figure may be wrong. The
    factor is None where it is not known, or where most pairs contradict it.
    """
    pairs = [(low, high) for low, high in rates if span(low) and span(high)]
    values = [(float(a.rstrip("*")), float(b.rstrip("*"))) for a, b in pairs]
    estimates = [names.ranks_from_rates(collective, *rates_) for rates_ in values]
    counted = [ranks for ranks in estimates if ranks is not None]
    rated = max(dict.fromkeys(counted), key=counted.count, default=None)
    ranks, note = listed or rated, ""
    if listed and rated and listed not in counted:
        ranks = rated
        why = "the list is cut" if rated > listed else "it is of several groups"
        note = f"{listed} ranks are listed, but the rates are those of {rated}: {why}"
    factor = names.bus_factor(collective, ranks)
    odd = [contradiction(None, None, *pair, factor) for pair in pairs]
    if 2 * sum(map(bool, odd)) <= len(odd):
        return Agreed(ranks, factor, note)
    where = f"{sum(map(bool, odd))} of {len(odd)} rows"
    text = f"busbw is not algbw x {factor:.4g}, which {collective} on {ranks} ranks has, in {where}"
    return Agreed(ranks, None, f"{note}; {text}" if note else text)


def micros(value: object) -> Printed | None:
    """Microseconds of a JSON document as seconds; None where there are none."""
    ends = None if value is None else span(str(value))
    return None if ends is None else ends.scaled(1e-6)
