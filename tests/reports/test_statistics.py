"""What is derived of a row's times: ranks of intervals, their width, and the row's own figure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.statistics import interval
from reports.records.record import Result, Sample
from reports.statistics.order import bandwidths, center, relative_width

TIMES = st.lists(st.floats(1e-7, 10.0), min_size=6, max_size=300)


@pytest.mark.parametrize(
    ("n", "low", "high"),
    [(6, 1, 6), (7, 1, 7), (8, 1, 8), (10, 1, 10), (20, 5, 16), (50, 18, 33), (100, 40, 61),
    (1000, 469, 532)],
)  # fmt: skip
def test_intervals_have_the_published_ranks(n: int, low: int, high: int) -> None:
    """Rule: the 95 % interval of a median is made of samples number low and high (Le Boudec)."""
    assert interval([float(i) for i in range(n, 0, -1)]) == (low, high)


def test_below_six_values_nothing_is_claimed() -> None:
    """Rule: no interval, and a width that no row is ever precise enough for."""
    for n in range(6):
        assert interval([1.0] * n) is None and relative_width([1.0] * n) == float("inf")
    assert relative_width([0.0] * 10) == float("inf")


def test_a_width_is_that_of_the_longer_side() -> None:
    """Rule: how far the farther end lies from the median, relative to it; 2 % of 1 s are 20 ms."""
    up = [float(i if i <= 50 else 50 + 10 * (i - 50)) for i in range(1, 101)]
    assert relative_width(up) == pytest.approx((160 - 55) / 55)
    down = [1000 - t for t in up]
    assert relative_width(down) == pytest.approx((945 - 840) / 945)
    assert relative_width([0.5] * 10 + [9.9]) == 0


@given(TIMES, st.floats(1e-3, 1e3))
def test_figures_scale_with_the_times(times: list[float], factor: float) -> None:
    """Rule: another unit changes no share, and every figure by the same factor."""
    scaled = [t * factor for t in times]
    ends, found = interval(times), interval(scaled)
    assert ends and found and found == pytest.approx([t * factor for t in ends])
    assert relative_width(scaled) == pytest.approx(relative_width(times), rel=1e-6, abs=1e-9)
    assert center(Sample(tuple(scaled))) == pytest.approx(
        (center(Sample(tuple(times))) or 0) * factor
    )


@pytest.mark.parametrize(
    ("times", "median", "mean"),
    [((3.0, 1.0, 8.0), 3.0, 4.0), ((4.0, 1.0, 2.0, 9.0), 3.0, 4.0), ((5.0,), 5.0, 5.0)],
)
def test_a_row_has_the_median_or_the_mean(
    times: tuple[float, ...], median: float, mean: float
) -> None:
    """Rule: the median unless the mean was asked for, or a loop gave nothing else."""
    assert center(Sample(times)) == median
    assert center(Sample(times), "mean") == center(Sample(times, timing="loop")) == mean
    assert center(Sample()) is None


def test_bandwidths_have_their_factors() -> None:
    """Rule: algbw is the share of the size that counts over the time.

    Busbw that times the factor.
    """
    row = Result("x", "y", "shm", 4, 1000, 250, "float", "sum", -1, 1.5, alg_factor=0.5)
    assert bandwidths(row, 1e-6) == (5e8, 7.5e8)


@given(st.lists(st.floats(1e-9, 10), min_size=1, max_size=60))
def test_an_array_has_the_interval_of_its_list(times: list[float]) -> None:
    """Rule: the quick way for long rows gives the same ranks as the one for short ones."""
    assert interval(np.array(times)) == interval(times)
    assert relative_width(np.array(times)) == relative_width(times)
