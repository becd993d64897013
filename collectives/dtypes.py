"""Element types by the names that nccl-tests uses."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from collectives.errors import Unsupported

__all__ = ["DTYPES", "dtype"]

_NUMPY = {
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "double": "float64",
}
DTYPES = tuple(_NUMPY)


@cache
def dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of that name; bfloat16 comes from ml_dtypes.

    Raises Unsupported with the list of names.
    """
    if name not in _NUMPY:
        raise Unsupported(f"no data type {name!r}; there are: {', '.join(DTYPES)}")
    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(_NUMPY[name])
