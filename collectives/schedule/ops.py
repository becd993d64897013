"""Reduction operations by the names that nccl-tests uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Op:
    """An operation: ``ufunc`` combines two values; ``mean``: then divide by the rank count."""

    name: str
    ufunc: np.ufunc
    mean: bool = False


# Elements per block, so that quotients are still in the cache when they are rounded.
_BLOCK = 1 << 16
_OPS = {
    op.name: op
    for op in (
        Op("sum", np.add),
        Op("prod", np.multiply),
        Op("min", np.minimum),
        Op("max", np.maximum),
        Op("avg", np.add, mean=True),
    )
}
OPS = tuple(_OPS)


def op(name: str) -> Op:
    """The operation of a name. Raises Unsupported with the list of names."""
    if name not in _OPS:
        from busbar.arguments import unknown

        raise unknown("operation", name, OPS)
    return _OPS[name]


def scale(array: NDArray[Any], nranks: int) -> None:
    """Divide sums by the rank count in place, for ``avg``; integers are rounded down.

    The rank count need not be representable in the type: 300 is not in int8, nor in bfloat16.
    """
    if array.dtype.kind in "iu":
        fits = nranks <= np.iinfo(array.dtype).max
        wide = array.dtype.type if fits else np.int64
        np.floor_divide(array, wide(nranks), out=array, casting="unsafe")
    elif array.dtype.itemsize < 4:
        for start in range(0, len(array), _BLOCK):
            part = array[start : start + _BLOCK]
            part[...] = part.astype(np.float32) / np.float32(nranks)
    else:
        np.divide(array, array.dtype.type(nranks), out=array)
