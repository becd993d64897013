"""Sizes are read and swept as nccl-tests does it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import Unsupported
from busbar.units import parse_ranks, parse_size, sweep_sizes


@given(st.integers(0, 4096), st.sampled_from([("", 1), ("K", 2**10), ("m", 2**20), ("G", 2**30)]))
def test_units_are_binary(number: int, unit: tuple[str, int]) -> None:
    """Rule: K, M and G are 2^10, 2^20 and 2^30, in either case."""
    assert parse_size(f"{number}{unit[0]}") == number * unit[1]


@pytest.mark.parametrize("text", ["1001.5", "0.5B", "1e3", "-1K", "1Kb", ""])
def test_what_is_no_whole_number_of_bytes_is_refused(text: str) -> None:
    """Rule: a size of parts of a byte is refused instead of cut off, if it has no unit."""
    with pytest.raises(Unsupported, match=r"no size|whole number|b is bits|negative"):
        parse_size(text)
    assert parse_size("1001.0") == 1001 and parse_size("1.1K") == 1126


@given(st.integers(1, 2**20), st.integers(0, 2**24), st.floats(1.01, 16))
def test_a_factor_sweep_rises_from_minimum_to_at_most_maximum(
    low: int, more: int, factor: float
) -> None:
    """Rule: sizes start at -b, rise strictly and never pass -e."""
    sizes = sweep_sizes(low, low + more, factor=factor, step=None)
    assert sizes[0] == low and sizes[-1] <= low + more
    assert all(a < b for a, b in pairwise(sizes))


def test_increments_advance_by_bytes() -> None:
    """Rule: -i adds instead of multiplying."""
    assert sweep_sizes(10, 40, factor=None, step=15) == [10, 25, 40]


def test_a_range_of_ranks_that_falls_is_refused() -> None:
    """Rule: no part of a list of rank counts is left out without a word."""
    assert parse_ranks("2-4,16") == [2, 3, 4, 16]
    with pytest.raises(Unsupported, match="'8-2' falls; write 2-8"):
        parse_ranks("8-2,16")
