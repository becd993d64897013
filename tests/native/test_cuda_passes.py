"""The executor's passes, built for the host, give what NumPy gives: every type, tail and skew."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from collectives.execution.gpu.kernels import ELEMENTS, OPERATIONS
from collectives.execution.ipc.plan import Addresses, StagingArea, control_bytes, part, table, teams
from collectives.execution.shm.dependences import DependenceGraph
from collectives.execution.shm.tasks import Place, Work
from collectives.schedule.dtypes import DTYPES, FLOAT8, dtype
from collectives.schedule.ops import Op, op
from tests.gpu_standin import library
from tests.native.passes import every_value, expected, shifted, values


def one_pass(
    targets: list[NDArray[Any]], sources: list[NDArray[Any]], by: Op, blocks: int, threads: int
) -> None:
    """A plan of one rank and one pass, run once."""
    every = [*targets, *sources]
    places = [Place(0, i, 0) for i in range(len(every))]
    cut = len(targets)
    work = Work(0, len(targets[0]), places[:cut], places[cut:])
    found = DependenceGraph(((work,),), ((),), (0,), True, (work,))
    control = np.zeros(control_bytes(1, blocks) // 8, np.uint64)
    host = np.zeros(8, np.uint64)
    at = int(host.ctypes.data)
    to = Addresses(
        [int(control.ctypes.data)], [0], at, at + 8, at + 16, lambda p: every[p.segment].ctypes.data
    )
    kind = targets[0].dtype
    stage = StagingArea.of((work,), 0, blocks, kind.itemsize)
    words = table(found, 0, blocks, stage, to, 0, 1.0)
    library().busbar_program(
        list(ELEMENTS).index(kind.name), list(OPERATIONS).index(by.ufunc), blocks, threads,
        ctypes.c_uint64(words.ctypes.data), ctypes.c_uint64(len(words)),
    )  # fmt: skip
    assert not host.any()
    assert (control[blocks:] == 1).all()  # every block has counted the iteration


@given(
    st.sampled_from((*DTYPES, *FLOAT8)),
    st.sampled_from(["sum", "prod", "min", "max"]),
    st.integers(1, 700),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.booleans(),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 2**32 - 1),
)
def test_a_pass_equals_numpy(
    kind: str, name: str, count: int, to: list[int], of: list[int], alike: bool, blocks: int,
    threads: int, seed: int,
) -> None:  # fmt: skip
    """Rule: any count, any skew of any place, any blocks; nothing beside is touched."""
    element = dtype(kind)
    if alike:  # all behind 16 bytes by the same: the wide path, with a head and a tail
        to, of = [to[0]] * len(to), [to[0]] * len(of)
    rows = values(element, len(of), count, seed)
    sources = [shifted(row, at) for row, at in zip(rows, of, strict=True)]
    targets = [shifted(np.zeros(count, element), at) for at in to]
    one_pass(targets, sources, op(name), blocks, threads)
    wanted = expected(op(name).ufunc, rows)
    for target in targets:
        np.testing.assert_array_equal(target, wanted)
        raw = target.base
        assert raw is not None
        begin = target.ctypes.data - raw.ctypes.data
        beside = np.concatenate([raw[:begin], raw[begin + target.nbytes :]])
        assert (beside == 0xEE).all()


@pytest.mark.parametrize("name", ["half", "bfloat16", *FLOAT8])
def test_small_floats_round_once_to_nearest_even(name: str) -> None:
    """Rule: joined in float and rounded once, subnormals, infinities and NaN included."""
    every_value(dtype(name), lambda target, rows: one_pass([target], rows, op("sum"), 2, 1))


def test_targets_may_be_sources() -> None:
    """Rule: in place, all sources of an element are read before any target of it is written."""
    rows = [np.arange(5000, dtype=np.float32) + i for i in range(3)]
    wanted = expected(np.add, rows)
    one_pass(rows[::-1], rows, op("sum"), 2, 2)
    for row in rows:
        np.testing.assert_array_equal(row, wanted)


@given(st.integers(0, 10**6), st.integers(1, 300), st.sampled_from([1, 2, 4, 8]))
def test_parts_cover_a_pass(size: int, nteams: int, itemsize: int) -> None:
    """Rule: the parts of all blocks cover a pass, and each begins at a multiple of 16 bytes."""
    each = part(size, nteams, itemsize)
    assert each * nteams >= size and each * itemsize % 16 == 0
    assert (each - 16 // itemsize) * nteams < max(1, size)


@given(st.integers(0, 1 << 34), st.integers(1, 264))
def test_blocks_are_as_many_as_a_pass_needs(size: int, most: int) -> None:
    """Rule: one block for little, never more than are resident, one where pieces are unequal."""
    work = Work(0, size, [Place(0, 0, 0)], [Place(0, 1, 0)])
    found = teams(DependenceGraph(((work,),), ((),), (0,), True, (work,)), 4, most)
    assert 1 <= found <= most
    assert found == 1 or (found - 1) * 8192 < 4 * size
    assert teams(DependenceGraph(((work,),), ((),), (0,), False, (work,)), 4, most) == 1
