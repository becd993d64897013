"""Inputs whose reduction is exact in any order, and what must come out.

All ranks share one table T of random values; element i of rank r's vector is T[(a(i) + r·K) mod M].
What a collective must yield then depends on a(i) only, and is a second table: one look-up an
element, whatever the rank count, operation or type. T's values are small enough that every
partial result is exact, so the number of wrong elements has no tolerance.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.layout import Elements, Layout
from collectives.moves import Buffer
from collectives.ops import Op, scale

__all__ = ["Inputs", "Wrong"]

_M = 65521  # prime, so that shifts by any rank and block visit every value
_RANK_STRIDE, _BLOCK_STRIDE = 7919, 104729
_FRACTION = {
    "float16": 10,
    "bfloat16": 7,
    "float32": 23,
    "float64": 52,
    "float8_e4m3fn": 3,
    "float8_e5m2": 2,
}
Array = NDArray[Any]
# Integers up to here are exact in the type.
_EXACT = {
    "float16": 2048,
    "bfloat16": 256,
    "float32": 2**24,
    "float64": 2**53,
    "float8_e4m3fn": 16,
    "float8_e5m2": 8,
}


class Wrong(NamedTuple):
    """How many elements of a rank's output are wrong, and the first of them."""

    count: int  # type: ignore[assignment]
    index: int  # type: ignore[assignment]
    got: str
    expected: str


class Inputs:
    """Data for one collective, rank count, type and operation.

    ``op`` is None for collectives that only move data. ``layout`` says which parts each rank has
    and wants, ``elements`` how many elements the parts have (see `Layout.bounds`).
    """

    def __init__(
        self, layout: Layout, dtype: np.dtype[Any], op: Op | None, elements: Elements
    ) -> None:
        self._layout, self._dtype, self._op = layout, dtype, op
        parts = layout.spec.parts(layout.nranks)
        self._sizes = np.broadcast_to(np.asarray(elements, np.int64), parts)
        self._starts = np.cumsum(self._sizes) - self._sizes
        table = _table(dtype, op, layout.nranks)
        self._tables: dict[tuple[int, ...], Array] = {}
        self._shifts = [np.roll(table, -r * _RANK_STRIDE) for r in range(min(layout.nranks, 64))]
        self._table = table

    def _of_rank(self, rank: int) -> Array:
        if rank < len(self._shifts):
            return self._shifts[rank]
        return np.roll(self._table, -rank * _RANK_STRIDE)

    def _expected(self, holders: tuple[int, ...]) -> Array:
        """The table that the reduction over some ranks follows."""
        if holders not in self._tables:
            parts = (self._of_rank(rank) for rank in holders)
            if self._op is None:
                result = next(iter(parts)).copy()
            else:
                result = reduce(self._op.ufunc, parts).astype(self._dtype)
                if self._op.mean:
                    scale(result, self._layout.nranks)
            # Doubled, so that any run of M values from any start is one slice.
            self._tables[holders] = np.concatenate([result, result])
        return self._tables[holders]

    def fill(self, rank: int, target: Array) -> None:
        """Write a rank's ``in``, which may be a device's memory."""
        table = self._of_rank(rank)
        double = np.concatenate([table, table])
        at = 0
        for part in self._layout.parts(rank, Buffer.IN).tolist():
            for start, length, source in _blocks(int(self._starts[part]), int(self._sizes[part])):
                begin = at + start
                target[begin : begin + length] = double[source : source + length]
            at += int(self._sizes[part])

    def check(self, rank: int, result: Array, ulps: int = 0) -> Wrong:
        """Compare a rank's ``out``, which may be a device's memory, with what must be there.

        Bit for bit; floats may be off by so many ``ulps`` where a library's average rounds.
        """
        holders = self._layout.spec.holders(self._layout.nranks, self._layout.root)
        count, first = 0, Wrong(0, -1, "", "")
        at = 0
        for part in self._layout.parts(rank, Buffer.OUT).tolist():
            table = self._expected(tuple(holders[part]))
            for start, length, source in _blocks(int(self._starts[part]), int(self._sizes[part])):
                begin = at + start
                got = host(result[begin : begin + length])
                bad = _differ(got, table[source : source + length], ulps)
                wrong = int(np.count_nonzero(bad))
                if wrong and not count:
                    i = int(np.flatnonzero(bad)[0])
                    first = Wrong(0, begin + i, str(got[i]), str(table[source + i]))
                count += wrong
            at += int(self._sizes[part])
        return first._replace(count=count)


def host(array: Any) -> Array:
    """A vector in host memory: itself, or a copy of a device's."""
    copied: Array = array.host() if hasattr(array, "host") else array
    return copied


def _differ(got: Array, wanted: Array, ulps: int) -> NDArray[np.bool_]:
    """Which elements are wrong; with ``ulps``, units in the last place that floats may be off by."""
    if not ulps or got.dtype.kind in "iu":
        return np.asarray(got != wanted)
    values, targets = got.astype(np.float64), wanted.astype(np.float64)
    fraction = _FRACTION[got.dtype.name]
    unit = np.exp2(
        np.floor(np.log2(np.maximum(np.abs(targets), np.finfo(np.float64).tiny))) - fraction
    )
    return np.asarray(~(np.abs(values - targets) <= ulps * unit))


def _blocks(first: int, length: int) -> list[tuple[int, int, int]]:
    """(offset, length, start in the table) of the runs that elements first … first+length follow."""
    found = []
    at = first
    while at < first + length:
        block, inside = divmod(at, _M)
        n = min(_M - inside, first + length - at)
        found.append((at - first, n, (inside + block * _BLOCK_STRIDE) % _M))
        at += n
    return found


def _table(dtype: np.dtype[Any], op: Op | None, nranks: int) -> Array:
    """M values, none zero unless they must be, whose reduction over the ranks is exact."""
    random = np.random.default_rng(20090101)
    if op is not None and op.name == "prod":
        return _factors(random, dtype, nranks)
    top = _EXACT.get(dtype.name) or min(int(np.iinfo(dtype).max), 2**31 - 1)
    if op is None or op.name in ("min", "max"):
        return random.integers(1, min(top, 2**24), _M, endpoint=True).astype(dtype)
    share = top // nranks
    if share >= 1:
        return random.integers(1, share, _M, endpoint=True).astype(dtype)
    # More ranks than exact integers: ones, few enough that no sum over ranks passes the limit.
    values = np.zeros(_M, np.int64)
    chosen = np.arange(0, _M, 2 * -(-nranks // top))
    values[chosen] = 1
    return random.permutation(values).astype(dtype)


def _factors(random: np.random.Generator, dtype: np.dtype[Any], nranks: int) -> Array:
    """Factors whose products are exact: wrapping integers, or ± powers of two for floats."""
    if dtype.kind in "iu":
        return (2 * random.integers(0, 2**6, _M) + 1).astype(dtype)
    # A product of n factors 2^e, |e| ≤ 1, alternating so that no run of ranks strays far.
    limit = {
        "float16": 12,
        "bfloat16": 100,
        "float32": 100,
        "float64": 900,
        "float8_e4m3fn": 5,
        "float8_e5m2": 12,
    }[dtype.name]
    exponents = random.integers(-1, 2, _M) * int(nranks <= limit)
    signs = random.choice([-1.0, 1.0], _M)
    return (signs * np.exp2(exponents)).astype(dtype)
