"""The distributions of Student and of chi-squared. scipy has them, and takes a second to load."""

from __future__ import annotations

from math import atan, cos, erfc, pi, sin, sqrt


def chi_squared_p(x: float, k: int) -> float:
    """The chance that a chi-squared value with k degrees of freedom is above x.

    Wilson and Hilferty's approximation (1931): the cube root of x / k is nearly normal.
    """
    if x <= 0:
        return 1.0
    share = 2 / (9 * k)
    return erfc(((x / k) ** (1 / 3) - 1 + share) / sqrt(share) / sqrt(2)) / 2


def student_p(t: float, k: int) -> float:
    """The chance that Student's t with k degrees of freedom is above ``t``.

    The finite sums for whole k in Abramowitz, Stegun, "Handbook of Mathematical Functions", 26.7.3
    and 26.7.4. Raises ValueError for k below 1.
    """
    if k < 1:
        raise ValueError(f"{k} degrees of freedom")
    theta = atan(abs(t) / sqrt(k))
    cosine = cos(theta) ** 2
    term, total = 1.0, 0.0
    if k % 2:
        term = cos(theta)
        for i in range(1, (k + 1) // 2):
            total += term
            term *= cosine * 2 * i / (2 * i + 1)
        inside = (theta + sin(theta) * total) * 2 / pi
    else:
        for i in range(1, k // 2 + 1):
            total += term
            term *= cosine * (2 * i - 1) / (2 * i)
        inside = sin(theta) * total
    tail = max(0.0, 1 - inside) / 2
    return tail if t >= 0 else 1 - tail


def student_quantile(tail: float, k: int) -> float:
    """The t that Student's with k degrees of freedom is above with this chance, below a half."""
    low, high = 0.0, 1.0
    while student_p(high, k) > tail:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, k) > tail else (low, middle)
    return high
