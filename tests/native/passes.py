"""What passes of kernels are compared with: NumPy's, over memory between lines of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.schedule.dtypes import limits

LINE = 64


def values(kind: np.dtype[Any], sources: int, count: int, seed: int) -> list[NDArray[Any]]:
    """Small whole numbers and their halves: no operation here overflows a half."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0 if kind.kind == "u" else -3, 4, (sources, count))
    return list((drawn if kind.kind in "iu" else drawn / 2).astype(kind))


def shifted(array: NDArray[Any], offset: int) -> NDArray[Any]:
    """A copy that begins ``offset`` elements behind a line, between two lines of its own."""
    raw = np.full(array.nbytes + 3 * LINE + offset * array.itemsize, 0xEE, np.uint8)
    start = -raw.ctypes.data % LINE + LINE + offset * array.itemsize
    view = raw[start : start + array.nbytes].view(array.dtype)
    view[...] = array
    return view


def expected(ufunc: np.ufunc, rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """One pass in the order of sources; small floats in float, rounded once.

    Eight-bit floats saturate.
    """
    kind = rows[0].dtype
    small = kind.kind not in "iu" and kind.itemsize < 4
    wide = np.dtype(np.float32) if small else kind
    total = rows[0].astype(wide)
    for row in rows[1:]:
        total = ufunc(total, row.astype(wide))
    if small and kind.itemsize == 1:
        most = np.float32(limits(kind).max)
        total = np.clip(total, -most, most)
    return total.astype(kind)


def every_value(
    kind: np.dtype[Any], add: Callable[[NDArray[Any], list[NDArray[Any]]], None]
) -> None:
    """Add every value of a small float type to others, and compare bit by bit, NaN as NaN."""
    bits = np.dtype(f"u{kind.itemsize}")
    every = np.arange(1 << 8 * kind.itemsize).astype(bits).view(kind)
    rows = [every, np.roll(every, 12345), np.roll(every, 54321)]
    target = np.empty_like(every)
    add(target, rows)
    with np.errstate(all="ignore"):
        want = expected(np.add, rows)
    nan = np.isnan(want.astype(np.float32))
    assert (np.isnan(target.astype(np.float32)) == nan).all()
    np.testing.assert_array_equal(target[~nan].view(bits), want[~nan].view(bits))
