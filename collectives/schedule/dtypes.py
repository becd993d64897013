"""Element types by the names that nccl-tests uses."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

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
# Only some libraries and devices support these, so "all types" does not include them.
_FLOAT8 = {"f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
FLOAT8 = tuple(_FLOAT8)
# Names of the same types in other libraries.
_ALIASES = {
    "float16": "half",
    "fp16": "half",
    "f16": "half",
    "bf16": "bfloat16",
    "float32": "float",
    "fp32": "float",
    "f32": "float",
    "float64": "double",
    "fp64": "double",
    "f64": "double",
    "float8_e4m3": "f8e4m3",
    "fp8_e4m3": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "fp8_e5m2": "f8e5m2",
    "int": "int32",
}


def canonical(name: str) -> str:
    """nccl-tests' name of a type by another library's name; an unknown name is unchanged."""
    return _ALIASES.get(name.lower(), name)


@cache
def dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of a name; bfloat16 and the 8-bit floats come from ml_dtypes.

    Raises Unsupported with the list of names.
    """
    numpy_name = (_NUMPY | _FLOAT8).get(canonical(name))
    if numpy_name is None:
        from busbar.arguments import unknown

        raise unknown("data type", name, (*DTYPES, *FLOAT8))
    if numpy_name.startswith(("bfloat", "float8")):
        import ml_dtypes

        other: np.dtype[Any] = np.dtype(getattr(ml_dtypes, numpy_name))
        return other
    return np.dtype(numpy_name)


def limits(kind: np.dtype[Any]) -> Any:
    """The limits of a float type, as from `numpy.finfo`; also for bfloat16 and 8-bit floats."""
    import ml_dtypes

    finfo: Any = ml_dtypes.finfo
    return finfo(kind)
