"""Statistics of a row's times: ranks of intervals, their width, and the row's own figure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from busbar.statistics import dependence, interval, mean_interval
from reports.readers.codec import run_of
from reports.records.measurement import Record
from reports.records.table import measured
from reports.statistics.quantities import bandwidths, center, relative_width
from tests.reports.runs import allreduce

TIMES = st.lists(st.floats(1e-7, 10.0), min_size=6, max_size=300)


def _apart(values: list[float]) -> list[float]:
    """Small and large ones in turns, so that no neighbours are alike."""
    ordered, half = sorted(values), len(values) // 2
    return [v for pair in zip(ordered[:half], ordered[half:], strict=True) for v in pair]


def _autoregression(random: np.random.Generator, count: int, n: int, r: float) -> np.ndarray:
    """Series whose neighbours have the correlation r and whose median is 1."""
    x = random.standard_normal((count, n))
    for i in range(1, n):
        x[:, i] = r * x[:, i - 1] + (1 - r * r) ** 0.5 * x[:, i]
    return np.asarray(np.exp(0.1 * x))


@pytest.mark.parametrize(
    ("n", "r", "least"),
    [(8, 0.3, 0.95), (10, 0.6, 0.93), (20, 0.8, 0.93), (30, 0.8, 0.95), (30, 0.9, 0.93),
    (59, 0.9, 0.95), (60, 0.95, 0.93), (400, 0.98, 0.95),
    (20, 0.0, 0.97), (20, 0.3, 0.95), (59, 0.3, 0.95), (59, 0.6, 0.93), (60, 0.6, 0.95),
    (120, 0.0, 0.95), (120, 0.6, 0.95), (120, 0.9, 0.91), (1000, 0.0, 0.95), (1000, 0.9, 0.93)],
)  # fmt: skip
def test_intervals_cover_also_where_neighbours_are_alike(n: int, r: float, least: float) -> None:
    """Rule: 95 % of the intervals hold the median, whatever neighbours have in common, as long as
    the series is long against it. Few values have wider ones.
    """  # noqa: D205
    series = _autoregression(np.random.default_rng(1), 500, n, r)
    hits = sum(low <= 1 <= high for low, high in filter(None, map(interval, series)))
    assert least <= hits / 500
    if not r:  # what it costs where nothing is alike: 2.456 / √n is half of the least width
        widths = [(high - low) / 0.1 for low, high in filter(None, map(interval, series))]
        assert np.median(widths) <= 2 * 2 * 2.456 / np.sqrt(n)


def test_short_series_that_are_alike_reach_beyond_their_values() -> None:
    """Rule: a few values that follow one another closely have seen a part of the distribution; the
    interval is wider than they are, and stays above 0 where they do. It is nothing for equal ones.
    """  # noqa: D205
    rising = [1.0 + 0.1 * i for i in range(8)]
    low, high = interval(rising) or (1.0, 1.0)
    assert 0 < low < 0.7 and high > 2
    down, up = interval([x - 3 for x in rising]) or (0.0, 0.0)
    assert down < -2.5 and up == pytest.approx(high - 3)
    assert interval([2.0] * 8) == (2.0, 2.0)


def test_levels_that_last_widen_the_interval() -> None:
    """Rule: a level that changes every sixty of three hundred iterations by one standard deviation
    is in the interval, though it is a small part of what neighbours have in common.
    """  # noqa: D205
    random = np.random.default_rng(2)
    level = np.repeat(random.standard_normal((400, 5)), 60, axis=1)
    series = 100 + random.standard_normal((400, 300)) + level
    hits = [low <= 100 <= high for low, high in filter(None, map(interval, series))]
    assert sum(hits) / 400 >= 0.9


def test_equal_and_rising_values_have_an_interval() -> None:
    """Rule: ties are no likeness; a series that only rises counts for a few values."""
    assert interval([1.0] * 40) == (1.0, 1.0)
    low, high = interval([float(i) for i in range(40)]) or (20.0, 20.0)
    assert low < 4 and high > 35  # 13 and 26 if the order were of no account
    equal = np.ones((2, 19))
    assert dependence(equal, np.argsort(equal, axis=1), equal).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("n", "low", "high"),
    [(6, 1, 6), (8, 1, 8), (10, 1, 10), (20, 5, 16), (50, 18, 33), (100, 40, 61),
    (1000, 469, 532)],
)  # fmt: skip
def test_intervals_have_the_published_ranks(n: int, low: int, high: int) -> None:
    """Rule: the 95 % interval of a median is made of samples number low and high (Le Boudec)."""
    assert interval(_apart([float(i) for i in range(n, 0, -1)])) == (low, high)


def test_below_six_values_nothing_is_claimed() -> None:
    """Rule: no interval, and a width that no row is ever precise enough for."""
    for n in range(6):
        assert interval([1.0] * n) is None and relative_width([1.0] * n) == float("inf")
    assert relative_width([0.0] * 10) == float("inf")


def test_a_width_is_that_of_the_longer_side() -> None:
    """Rule: how far the farther end lies from the median, relative to it; 2 % of 1 s are 20 ms."""
    up = _apart([float(i if i <= 50 else 50 + 10 * (i - 50)) for i in range(1, 101)])
    assert relative_width(up) == pytest.approx((160 - 55) / 55)
    down = [1000 - t for t in up]
    assert relative_width(down) == pytest.approx((945 - 840) / 945)
    assert relative_width([0.5] * 40 + [9.9]) == 0


@given(TIMES, st.floats(1e-3, 1e3))
def test_figures_scale_with_the_times(times: list[float], factor: float) -> None:
    """Rule: another unit changes no share, and every figure by the same factor."""
    scaled = [t * factor for t in times]
    ends, found = interval(times), interval(scaled)
    assert ends and found and found == pytest.approx([t * factor for t in ends])
    assert relative_width(scaled) == pytest.approx(relative_width(times), rel=1e-6, abs=1e-9)
    assert center(Record(times_s=tuple(scaled))) == pytest.approx(
        (center(Record(times_s=tuple(times))) or 0) * factor
    )


def test_a_mean_of_loops_has_student_s_interval() -> None:
    """Rule: of means of loops there are the mean and its interval by Student's t, as scipy's.

    Least, greatest and percentiles would be those of loops and not of iterations: there are none.
    """
    times = np.random.default_rng(4).normal(1.0, 0.1, 23)
    row = measured(Record(times_s=tuple(times), timing="loop"), run_of({}, ""))
    ends = stats.t.interval(0.95, 22, times.mean(), stats.sem(times))
    assert (row.low_s, row.high_s) == pytest.approx(ends)
    assert mean_interval(times) == pytest.approx(ends)
    assert row.time_s == pytest.approx(times.mean())
    assert row.min_s is row.max_s is row.p99_s is row.cv is None
    few = measured(Record(times_s=tuple(times[:5]), timing="loop"), run_of({}, ""))
    assert few.low_s is few.high_s is mean_interval(times[:5]) is None


@pytest.mark.parametrize(
    ("times", "median", "mean"),
    [((3.0, 1.0, 8.0), 3.0, 4.0), ((4.0, 1.0, 2.0, 9.0), 3.0, 4.0), ((5.0,), 5.0, 5.0)],
)
def test_a_row_has_the_median_or_the_mean(
    times: tuple[float, ...], median: float, mean: float
) -> None:
    """Rule: the median unless the mean was asked for, or a loop gave nothing else."""
    assert center(Record(times_s=times)) == median
    assert (
        center(Record(times_s=times), "mean")
        == center(Record(times_s=times, timing="loop"))
        == mean
    )
    assert center(Record()) is None


def test_bandwidths_have_their_factors() -> None:
    """Rule: algbw is the share of the size that counts over the time.

    Busbw that times the factor.
    """
    row = allreduce("ring", 4, 1000, [], alg_factor=0.5)
    assert bandwidths(row.every[0], 1e-6) == (5e8, 7.5e8)


@given(st.lists(st.floats(1e-9, 10), min_size=1, max_size=60))
def test_an_array_has_the_interval_of_its_list(times: list[float]) -> None:
    """Rule: the quick way for long rows gives the same ranks as the one for short ones."""
    assert interval(np.array(times)) == interval(times)
    assert relative_width(np.array(times)) == relative_width(times)
