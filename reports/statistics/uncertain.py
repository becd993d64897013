"""Arithmetic on figures with 95 % intervals: products, quotients, means. Pure.

Intervals are combined by recovering variances from their ends (MOVER: Zou, Donner 2008 for sums;
Donner, Zou 2012 for quotients), which keeps them asymmetric. Figures are taken as independent. If
two figures rise and fall together, the interval of their quotient is too wide, not too narrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, hypot, sqrt
from statistics import median
from typing import NamedTuple

from busbar.statistics import interval


class Uncertain(NamedTuple):
    """A figure and the ends of its 95 % interval; None if the interval is not known."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval (low, high); None if not known."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def half(self) -> float | None:
        """The larger distance from the figure to an end of its interval; None if not known."""
        ends = self.ends
        return None if ends is None else max(ends[1] - self.value, self.value - ends[0])

    def times(self, factor: float) -> Uncertain:
        """The figure multiplied by an exact factor above 0."""
        ends = self.ends or (None, None)
        return Uncertain(self.value * factor, *(x if x is None else x * factor for x in ends))

    def under(self, dividend: float) -> Uncertain:
        """An exact ``dividend`` divided by this figure; both are above 0."""
        if self.ends is None or self.ends[0] <= 0:
            return Uncertain(dividend / self.value)
        low, high = self.ends
        return Uncertain(dividend / self.value, dividend / high, dividend / low)

    def over(self, other: Uncertain) -> Uncertain:
        """This figure divided by another one, which is above 0.

        The ends R of the interval solve (a − R b)² = d_a² + R² d_b², with the distances d to the
        ends of ``a`` and ``b`` in that direction. No interval if that of the other one reaches 0.
        """
        a, b = self.value, other.value
        if self.ends is None or other.ends is None:
            return Uncertain(a / b)
        (low, high), (least, most) = self.ends, other.ends
        below = _root(a, b, a - low, most - b if low >= 0 else b - least, -1)
        above = _root(a, b, high - a, b - least if high >= 0 else most - b, 1)
        if below is None or above is None:
            return Uncertain(a / b)
        return Uncertain(a / b, below, above)


def _root(a: float, b: float, da: float, db: float, sign: int) -> float | None:
    """The lower (sign −1) or upper root of R² (b² − db²) − 2 R a b + a² − da²; None without one."""
    if db >= b:
        return None
    room = max(0.0, (a * db) ** 2 + (b * da) ** 2 - (da * db) ** 2)
    return (a * b + sign * sqrt(room)) / (b * b - db * db)


def median_of(times: Sequence[float]) -> Uncertain:
    """The median with its interval by order statistics; no interval for fewer than six times."""
    return Uncertain(median(times), *(interval(times) or (None, None)))


def mean_of(figures: Sequence[Uncertain]) -> Uncertain:
    """The mean of independent figures. Squared distances to the ends of intervals are added."""
    n = len(figures)
    middle = fsum(one.value for one in figures) / n
    known = [(one.value, one.ends) for one in figures]
    below = [value - ends[0] for value, ends in known if ends is not None]
    above = [ends[1] - value for value, ends in known if ends is not None]
    if len(below) < n:
        return Uncertain(middle)
    return Uncertain(middle, middle - hypot(*below) / n, middle + hypot(*above) / n)
