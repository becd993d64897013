"""Fusion, laws of compute and the pipeline's formula: pure, so properties hold of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.steps import buckets
from bench.steps.options import compute
from bench.steps.sync import time_buckets, time_cycles
from bench.steps.workloads import model
from busbar.errors import Unsupported
from tests.conftest import examples

SIZES = st.lists(st.integers(1, 1000), min_size=1, max_size=60)


@examples(150)
@given(SIZES, st.lists(st.integers(1, 4000), min_size=1, max_size=3), st.data())
def test_buckets_hold_every_tensor_once_and_in_order(
    sizes: list[int], limits: list[int], data: st.DataObject
) -> None:
    """Rule: as DDP, a bucket closes with the tensor that reaches its limit; types do not mix."""
    kinds = data.draw(st.lists(st.sampled_from("ab"), min_size=len(sizes), max_size=len(sizes)))
    found = buckets.assign_buckets(sizes, limits, kinds)
    assert [n for span in found for n in range(*span)] == list(range(len(sizes)))
    for number, (first, stop) in enumerate(found):
        limit = limits[min(number, len(limits) - 1)]
        held = sum(sizes[first:stop])
        assert len(set(kinds[first:stop])) == 1
        assert held - sizes[stop - 1] < limit  # it was open until its last tensor
        if held < limit and stop < len(sizes):
            assert kinds[stop] != kinds[stop - 1]


def test_ddp_of_resnet50_is_torchs() -> None:
    """Rule: a first bucket of 1 MiB, then of 25: ResNet-50's 97.5 MiB are five buckets."""
    sizes = [4 * tensor.elements for tensor in model("resnet50").ready]
    found = buckets.assign_buckets(sizes, buckets.parse_fusion("ddp").limits)
    held = [sum(sizes[a:b]) for a, b in found]
    # The dense layer of 8 MB closes the first: a bias of 4 KB stands before it.
    assert found[0] == (0, 2) and held[0] == 4 * (1000 + 2048 * 1000)
    assert len(found) == 5 and all(one >= 25 << 20 for one in held[1:-1])


@examples(150)
@given(SIZES, st.integers(1, 3000), st.data())
def test_a_buffer_holds_no_more_than_its_size(
    sizes: list[int], buffer: int, data: st.DataObject
) -> None:
    """Rule: as Horovod, ready tensors fill a buffer in order; only a larger one is alone in it."""
    start = data.draw(st.integers(0, len(sizes)))
    stop = data.draw(st.integers(start, len(sizes)))
    found = list(buckets.fill_buffers(sizes, start, stop, buffer))
    assert [n for span in found for n in range(*span)] == list(range(start, stop))
    for a, b in found:
        assert sum(sizes[a:b]) <= buffer or b == a + 1
    for (a, b), (_, d) in pairwise(found):
        assert sum(sizes[a : b + 1]) > buffer, (a, b, d)


# -- laws


def test_a_law_gives_the_same_answer_to_the_same_question() -> None:
    """Rule: draws depend only on seed, rank and step; another seed gives other draws."""
    law, again = compute("exp:20,5", seed=3), compute("exp:20,5", seed=3)
    draws = [law.seconds(rank, step) for rank in range(3) for step in range(-2, 3)]
    assert draws == [again.seconds(rank, step) for rank in range(3) for step in range(-2, 3)]
    assert len(set(draws)) == len(draws) and min(draws) >= 0.005
    assert compute("exp:20,5", seed=4).seconds(0, 0) != law.seconds(0, 0)
    assert law.mean == pytest.approx(0.025)
    many = np.array([law.draw(0, step) for step in range(2000)])
    assert many.mean() == pytest.approx(0.025, rel=0.1)  # 2000 draws: 1.8 % is one deviation


def test_a_step_is_the_sum_of_its_parts() -> None:
    """Rule: both passes together take the law's seconds, times a straggler's factor."""
    shares = model("vgg16").shares()
    law = compute("fixed:30", None, 0, ["1:2"])
    assert law.ready(1, 7, shares)[-1] == pytest.approx(0.060)
    ready = law.ready(0, 0, shares)
    assert ready[-1] == pytest.approx(0.030) and (np.diff(ready) >= 0).all() and ready[0] > 0.010


def test_recorded_times_are_replayed(tmp_path: Path) -> None:
    """Rule: a row is a step and a column a rank; both repeat, and a heading line is skipped."""
    path = tmp_path / "times.csv"
    path.write_text("rank0,rank1\n10,20\n30,40\n")
    law = compute(str(path))
    assert [law.draw(rank, 0) for rank in range(3)] == pytest.approx([0.01, 0.02, 0.01])
    assert law.draw(1, 3) == pytest.approx(0.04) and law.mean == pytest.approx(0.025)
    for text, said in (
        ("10\nx\n", ":2: milliseconds"),
        ("1,2\n3\n", ":2: 1 columns"),
        ("", "no times"),
    ):
        path.write_text(text)
        with pytest.raises(Unsupported, match=said):
            compute(str(path))


# -- the formula


@examples(100)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.001, 0.5), st.integers(1, 500)
)
def test_a_pipeline_is_between_its_bounds(gaps: list[float], each: float, limit: int) -> None:
    """Rule: a step takes at least its compute and at least its exchange, at most both in turn."""
    ready = np.cumsum(gaps)
    spans = buckets.assign_buckets([100] * len(gaps), [limit])
    took = time_buckets(ready, spans, lambda span: each)
    whole = each * len(spans)
    assert max(float(ready[-1]), whole) <= took + 1e-9
    assert took <= float(ready[-1]) + whole + 1e-9
    after = time_buckets(np.full(len(gaps), ready[-1]), spans, lambda span: each)
    assert after == pytest.approx(float(ready[-1]) + whole)
    assert took <= after + 1e-9


@examples(100)
@given(
    st.lists(st.floats(0, 0.1), min_size=1, max_size=30),
    st.floats(0.001, 0.5),
    st.floats(0.0, 0.05),
)
def test_cycles_exchange_everything_after_it_is_ready(
    gaps: list[float], cycle: float, each: float
) -> None:
    """Rule: with a cycle every tensor is exchanged once, when it is ready, and soon after."""
    ready = np.cumsum(gaps)
    seen: list[tuple[int, int]] = []

    def seconds(span: tuple[int, int]) -> float:
        seen.append(span)
        return each

    took = time_cycles(ready, [100] * len(gaps), 250, cycle, seconds)
    assert [n for span in seen for n in range(*span)] == list(range(len(gaps)))
    assert took >= float(ready[-1]) + each - 1e-9
    assert took <= float(ready[-1]) + 2 * cycle + each * len(gaps) + 1e-6


def test_cycles_count_from_the_last_exchange() -> None:
    """Rule: as in Horovod, the cycle after a long exchange begins at once, the next from there.

    A gradient that is ready one rounding error after a cycle waits for the next one.
    """

    def begins(ready: list[float], each: float) -> float:
        took = time_cycles(np.array(ready), [100] * len(ready), 1000, 0.005, lambda _: each)
        return took - each

    assert begins([0.001, 0.013], 0.007) == pytest.approx(0.017)  # cycles at 5, 12 and 17 ms
    assert begins([0.001, 0.013], 0.002) == pytest.approx(0.015)
    late = float(np.nextafter(0.015, 1))
    assert 0.015 <= begins([0.001, late], 0.001) <= 0.020 + 1e-9
