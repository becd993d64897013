"""Intervals that may be looked at after every pair."""

from __future__ import annotations

import numpy as np
import pytest

from reports.statistics.sequential import always_interval


def test_stopping_when_it_tells_does_not_deceive() -> None:
    """Rule: of equal sides at most 5 % are ever called different, though looked at 40 times; where
    Student's t at each look would do so in a third.
    """  # noqa: D205
    random, alarms, naive = np.random.default_rng(0), 0, 0
    for values in random.standard_normal((400, 40)):
        looks = [values[:n].tolist() for n in range(3, 41)]
        bounds = [b for one in looks if (b := always_interval(one)) is not None]
        alarms += any(not low <= 0 <= high for low, high in bounds)
        naive += any(abs(np.mean(v)) > 2.1 * np.std(v, ddof=1) / len(v) ** 0.5 for v in looks)
    assert alarms <= 0.05 * 400 and naive > 0.2 * 400


@pytest.mark.parametrize(("times", "most"), [(5.0, 6), (2.0, 15)])
def test_what_is_many_scatters_large_is_found_in_a_few_turns(times: float, most: int) -> None:
    """Rule: a difference of 5 scatters is told in six pairs, one of 2 in fifteen, nearly always."""
    random = np.random.default_rng(1)
    found = 0
    for values in times + random.standard_normal((100, most)):
        bounds = [always_interval(values[:n].tolist()) for n in range(2, most + 1)]
        found += any(b is not None and b[0] > 0 for b in bounds)
    assert found >= 95


def test_two_pairs_say_nothing_and_narrower_asks_for_more() -> None:
    """Rule: no interval below three values; it is around the mean, and wider for a lesser level."""
    assert always_interval([]) is always_interval([1.0]) is always_interval([1.0, 1.0]) is None
    values = [0.9, 1.0, 1.1, 1.0]
    one, other = always_interval(values), always_interval(values, 0.01)
    assert one is not None and other is not None
    assert other[0] < one[0] < 1 < one[1] < other[1] and sum(one) == pytest.approx(2)
