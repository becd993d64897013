"""Reduction operations by the names that nccl-tests uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.errors import Unsupported

__all__ = ["OPS", "Op", "op", "scale"]


@dataclass(frozen=True)
class Op:
    """An operation: ``ufunc`` joins two values; ``mean`` divides by the rank count at the end."""

    name: str
    ufunc: np.ufunc
    mean: bool = False


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
    """The operation of that name. Raises Unsupported with the list of names."""
    if name not in _OPS:
        raise Unsupported(f"no operation {name!r}; there are: {', '.join(OPS)}")
    return _OPS[name]


def scale(array: NDArray[Any], nranks: int) -> None:
    """Divide sums by the rank count, in place: how ``avg`` ends; integers are rounded down."""
    if array.dtype.kind in "iu":
        np.floor_divide(array, nranks, out=array)
    else:
        np.divide(array, array.dtype.type(nranks), out=array)
