"""Sizes and factors are nccl-tests': what a wanted size comes to, and what columns show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import Unsupported
from collectives.schedule.catalogue import collectives, spec
from collectives.schedule.counts import busiest, matrix, spread
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from tests.conftest import examples

WHOLE = {"allreduce", "broadcast", "reduce", "sendrecv", "sendrecv_pairs"}


@examples(100)
@given(st.integers(1, 33), st.integers(0, 2**24), st.sampled_from([1, 2, 4, 8]))
def test_sizes_are_rounded_as_nccl_tests_rounds(n: int, nbytes: int, itemsize: int) -> None:
    """Whole vectors keep their count, shares are multiples of 16 bytes, a barrier has none."""
    for name in collectives():
        size = spec(name).size(n, nbytes, itemsize)
        if name == "barrier":
            assert size == (1, 0, 0)
        elif name in WHOLE:
            assert size == (nbytes // itemsize, nbytes // itemsize * itemsize, nbytes // itemsize)
        else:
            base = (nbytes // itemsize // n) & ~(16 // itemsize - 1)
            assert size == (base, base * n * itemsize, base)


@examples(50)
@given(st.integers(1, 12), st.integers(1, 50))
def test_the_shown_size_is_the_larger_buffer(n: int, elements: int) -> None:
    """The size column shows what the busiest rank's larger buffer holds, as in nccl-tests."""
    for name in collectives():
        what = spec(name)
        if name == "barrier":
            continue
        layout = Layout(what, n, what.parts(n))
        largest = max(
            layout.elements(rank, buffer, elements)
            for rank in range(n)
            for buffer in (Buffer.IN, Buffer.OUT)
        )
        assert largest == what.total(n) * elements


def test_bus_factors() -> None:
    """The factors of nccl-tests' PERFORMANCE.md."""
    n = 8
    share = {"allgather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter"}
    for name in collectives():
        what = spec(name)
        wanted = {"allreduce": 2 * 7 / 8, "barrier": 0.0}.get(name, 7 / 8 if name in share else 1.0)
        assert what.bus_factor(n) == wanted
        assert what.alg_factor(n) == (7 / 8 if name == "hypercube" else 1.0)
        assert what.bus_factor(1) in (0.0, 1.0)


def test_spread_is_nccl_tests_generator() -> None:
    """Counts by distance: its documentation's example of four ranks, and balanced sums."""
    by_distance = spread(4, 4 * 6 * 1024, 4)
    assert by_distance[0].tolist() == [0, 1024, 2048, 3072]
    assert spread(4, 4096, 4, 0.0).tolist() == [[256] * 4] * 4
    for n in (1, 2, 5, 16):
        for factor in (0.0, 0.3, 1.0):
            counts = spread(n, 10**6, 4, factor)
            assert len(set(counts.sum(axis=0)) | set(counts.sum(axis=1))) == 1
            assert (counts * 4 % 16 == 0).all()
            assert busiest(counts) * 4 <= 10**6
    with pytest.raises(Unsupported, match="between 0"):
        spread(4, 4096, 4, 1.5)


def test_counts_matrices_are_checked() -> None:
    """A matrix of counts is square, whole, not negative and large enough, or cut to size."""
    assert matrix([[0, 1], [2, 3]], 1).tolist() == [[0]]
    assert busiest(matrix([[0, 1], [2, 3]], 2)) == 5
    for bad, complaint in (
        ([[1, 2]], "square"),
        ([[1]], "does not serve 2"),
        ([[0, -1], [2, 3]], "0 or more"),
        ([[0, 0.5], [2, 3]], "whole number"),
        ([1, 2], "square"),
    ):
        with pytest.raises(Unsupported, match=complaint):
            matrix(bad, 2)
    assert matrix(np.zeros((3, 3), np.uint8), 2).dtype == np.int64
