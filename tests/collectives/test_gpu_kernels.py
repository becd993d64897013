"""The kernels between messages, compiled for the host and run there, thread by thread.

What PTX does (16-bit and 8-bit floats but bfloat16, the gate) has another way on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import Unsupported
from collectives.execution.gpu.kernels import ELEMENTS, SOURCES, options
from collectives.execution.gpu.lane import Lane
from collectives.schedule.dtypes import DTYPES, FLOAT8, dtype
from collectives.schedule.ops import OPS, Op, op, scale
from tests.conftest import examples
from tests.gpu_standin import alone
from tests.native.passes import expected


@pytest.fixture(scope="module")
def lane() -> Iterator[Lane]:
    """A rank's stream, alone."""
    found: list[Lane] = []
    alone(found.append)
    yield found[0]


@examples(150)
@given(
    kind=st.sampled_from((*DTYPES, *FLOAT8)),
    name=st.sampled_from(OPS),
    n=st.integers(1, 200),
    sources=st.integers(1, SOURCES + 2),
    shifts=st.tuples(st.integers(0, 16), st.integers(0, 16), st.booleans()),
    seed=st.integers(0, 1000),
)
def test_any_sources_any_alignment(
    lane: Lane,
    kind: str,
    name: str,
    n: int,
    sources: int,
    shifts: tuple[int, int, bool],
    seed: int,
) -> None:
    """Rule: elements are joined as NumPy does, NaN too, wherever they begin; no others change."""
    joined, of, random = op(name), dtype(kind), np.random.default_rng(seed)
    first, other, alike = shifts
    low, high = (1, 3) if name == "prod" else (0, 9)
    host = [random.integers(low, high, n).astype(of) for _ in range(sources + 1)]
    if of.kind not in "iu":
        for values in host:
            values[random.random(n) < 0.05] = np.nan
    memory = [lane.device.allocate((n + 40) * of.itemsize).view(of) for _ in host]
    for array in memory:
        array.view(np.uint8)[:] = 0xEE
    starts = [first if alike or i % 2 else other for i in range(sources + 1)]
    views = [a[at : at + n] for a, at in zip(memory, starts, strict=True)]
    for view, values in zip(views, host, strict=True):
        view[:] = values
    wanted = _joined(joined, host)
    lane.enqueue(lane.kernels.reduce(views[0], views[0], views[1:], joined))
    if joined.mean:
        lane.enqueue([lane.kernels.divide(views[0], 3)])
        scale(wanted, 3)
    lane.wait()
    np.testing.assert_array_equal(views[0].host().astype(float), wanted.astype(float))
    poison = memory[0].host().view(np.uint8)
    inside = slice(starts[0] * of.itemsize, (starts[0] + n) * of.itemsize)
    assert (np.delete(poison, np.r_[inside]) == 0xEE).all()


def _joined(joined: Op, host: list[Any]) -> Any:
    """One pass after another: each carries small floats wide and rounds them once."""
    total = host[0]
    for i in range(1, len(host), SOURCES):
        total = expected(joined.ufunc, [total, *host[i : i + SOURCES]])
    return total


@pytest.mark.parametrize("kind", [kind for kind in (*DTYPES, *FLOAT8) if "int" not in kind])
@pytest.mark.parametrize("name", ["min", "max"])
def test_nan_goes_through(lane: Lane, name: str, kind: str) -> None:
    """Rule: a NaN of any rank is in the result, as NumPy has it, in whole packs and alone."""
    rows = [np.tile(row, 9).astype(dtype(kind)) for row in ([1, np.nan, 1], [1, 1, np.nan])]
    views = [lane.device.allocate(row.nbytes).view(row.dtype) for row in rows]
    for view, row in zip(views, rows, strict=True):
        view[:] = row
    lane.enqueue(lane.kernels.reduce(views[0], views[0], views[1:], op(name)))
    lane.wait()
    assert np.isnan(views[0].host().astype(float)).tolist() == [False, True, True] * 9


@pytest.mark.parametrize("name", ["int8", "int32", "int64"])
def test_negative_averages_round_down_and_sums_wrap(lane: Lane, name: str) -> None:
    """Rule: integers behave as NumPy's: division rounds down, sums wrap round."""
    of = dtype(name)
    values = np.array([-7, -6, -1, 0, 1, 7, np.iinfo(of).max], of)
    array = lane.device.allocate(values.nbytes).view(of)
    array[:] = values
    lane.enqueue([*lane.kernels.reduce(array, array, [array], op("sum"))])
    lane.enqueue([lane.kernels.divide(array, 3)])
    lane.wait()
    with np.errstate(over="ignore"):
        wanted = values + values
    scale(wanted, 3)
    assert np.array_equal(array.host(), wanted)


def test_a_type_without_kernels_is_refused() -> None:
    """Rule: a type without kernels is refused, with the list of those that have them."""
    assert len(ELEMENTS) == len((*DTYPES, *FLOAT8))
    with pytest.raises(Unsupported, match="no kernels for complex64; there are: int8"):
        options(np.dtype(np.complex64), None)
