"""Host kernels in C++, always optional: `load` gives them, or says why they are not there."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

#: What this version needs the extension to offer; ``src/module.cpp`` has the same number.
_INTERFACE = 12

#: Element types and operations (NumPy's names of both) by the kernels' numbers (src/kernels.hpp).
TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64",
)  # fmt: skip
OPS = ("add", "multiply", "minimum", "maximum")


@cache
def _found() -> tuple[ModuleType | None, str]:
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
    """The extension module, or None where it is not available; `why_not` says why."""
    return _found()[0]


def why_not() -> str:
    """One sentence on why `load` gives None; empty when it does not."""
    return _found()[1]
