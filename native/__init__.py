"""Host kernels in C++, always optional: `load` returns them; `why_not` why they are missing."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

#: The version of the extension's interface that is needed; ``src/module.cpp`` has the same number.
_INTERFACE = 14

#: NumPy's names of element types and operations, in the order of their numbers in src/kernels.hpp.
TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64",
)  # fmt: skip
OPS = ("add", "multiply", "minimum", "maximum")


@cache
def _load_module() -> tuple[ModuleType | None, str]:
    try:
        module = import_module("native._core")
        if getattr(module, "INTERFACE", 1) == _INTERFACE:
            return module, ""
        return None, (
            "the native extension was built from other sources than these: build it again (python"
            " setup.py build_ext --inplace, or reinstall), or go on with --transport mpi"
        )
    except ImportError as error:
        reason = (
            "it was not built (no C++20 compiler when this was installed?)"
            if isinstance(error, ModuleNotFoundError)
            else str(error)
        )
        return None, (
            f"the native extension is not available: {reason}; install a C++20 compiler and"
            " reinstall, or go on with --transport mpi"
        )


def load() -> ModuleType | None:
    """The extension module, or None if it is not available (`why_not` says why)."""
    return _load_module()[0]


def why_not() -> str:
    """One sentence: why `load` returns None; empty if it returns the module."""
    return _load_module()[1]
