"""Means and quotients of figures with intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.statistics.uncertain import Uncertain, mean_of, median_of

wide = st.floats(0.0, 0.4)


@given(st.floats(-5, 5), st.floats(0, 3), st.floats(0, 3), st.floats(0.1, 5), wide, wide)
def test_a_quotient_is_within_the_worst_and_beyond_either(
    a: float, below: float, above: float, b: float, less: float, more: float
) -> None:
    """Rule: a quotient's interval holds what either part leaves open, at most what both do."""
    one, other = Uncertain(a, a - below, a + above), Uncertain(b, b * (1 - less), b * (1 + more))
    found = one.over(other).ends
    assert found is not None and other.ends is not None
    corners = [x / y for x in (a - below, a, a + above) for y in (*other.ends, b)]
    edge = 1e-9 * (1 + max(map(abs, corners)))
    assert min(corners) - edge <= found[0] <= min((a - below) / b, a / b) + edge
    assert max((a + above) / b, a / b) - edge <= found[1] <= max(corners) + edge


def test_what_is_exact_adds_nothing() -> None:
    """Rule: over an exact figure, or under one, an interval is the other's, carried over."""
    exact = Uncertain(4.0, 4.0, 4.0)
    assert Uncertain(2.0, 1.0, 4.0).over(exact) == pytest.approx((0.5, 0.25, 1.0))
    assert exact.over(Uncertain(2.0, 1.6, 2.5)) == pytest.approx((2.0, 1.6, 2.5))
    assert Uncertain(2.0, 1.6, 2.5).under(4.0) == pytest.approx((2.0, 1.6, 2.5))
    assert Uncertain(2.0).over(exact) == (0.5, None, None)
    assert Uncertain(1.0, 0.9, 1.1).over(Uncertain(1.0, -0.5, 1.5)).ends is None  # may be 0


def test_intervals_cover_quotients_of_medians() -> None:
    """Rule: 95 of 100 intervals of a quotient of two medians hold it at least, less for chance."""
    random = np.random.default_rng(7)
    held = 0
    for _ in range(400):
        a = median_of((10 + random.standard_normal(41)).tolist())
        b = median_of((5 + random.exponential(1.0, 41)).tolist())
        low, high = a.over(b).ends or (0, 0)
        held += low <= 10 / (5 + np.log(2)) <= high
    assert held > 0.92 * 400


def test_a_mean_of_independent_figures() -> None:
    """Rule: of n alike the mean's interval is a root of n narrower; one of all must have one."""
    assert mean_of([Uncertain(3.0, 1.0, 4.0)] * 4) == pytest.approx((3.0, 2.0, 3.5))
    assert mean_of([Uncertain(3.0, 1.0, 4.0), Uncertain(5.0)]) == (4.0, None, None)
