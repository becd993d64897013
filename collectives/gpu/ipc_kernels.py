"""The CUDA executor from ``native/cuda``: the one place that finds, assembles and compiles it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from collectives.errors import Unavailable
from collectives.gpu.device import Device, Kernel
from collectives.ops import Op
from collectives.shared.fast import op_number, type_number

__all__ = ["BLOCKS", "THREADS", "Kernels", "compile_kernels", "options", "source"]

THREADS = 512
"""Threads of a block of the executor."""
BLOCKS = 2
"""Blocks that a multiprocessor holds at once, for which the compiler limits its registers."""

# In the order of collectives.shared.fast's type and operation numbers.
ELEMENTS = (
    "Int8", "Uint8", "Int32", "Uint32", "Int64", "Uint64", "Half", "Bfloat16", "Float", "Double",
)  # fmt: skip
OPERATIONS = ("kSum", "kProd", "kMin", "kMax")

_INCLUDE = re.compile(r'^#include "([a-z_]+\.cuh)"$', re.MULTILINE)


@dataclass(frozen=True)
class Kernels:
    """The kernels for one element type and operation; see ``native/cuda/busbar.cu``."""

    program: Kernel
    move: Kernel
    wait: Kernel
    signal: Kernel


def source() -> str:
    """All of the CUDA C++ in one piece, each file once: the run-time compiler knows no folders.

    Raises Unavailable where the sources were not installed.
    """
    folder = files("native").joinpath("cuda")
    seen: set[str] = set()

    def text(name: str) -> str:
        try:
            found = folder.joinpath(name).read_text(encoding="utf-8")
        except OSError as error:
            raise Unavailable(f"the CUDA sources are not installed: {error}") from None
        return _INCLUDE.sub(lambda match: once(match[1]), found.replace("#pragma once\n", ""))

    def once(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        return text(name)

    return text("busbar.cu")


def options(dtype: np.dtype[np.generic], op: Op | None) -> tuple[str, ...]:
    """What the compiler is told for an element type and an operation.

    Raises Unsupported for a type without kernels.
    """
    return (
        "-std=c++17",
        f"-DBUSBAR_ELEMENT={ELEMENTS[type_number(dtype)]}",
        f"-DBUSBAR_OPERATION={OPERATIONS[op_number(op)]}",
        f"-DBUSBAR_THREADS={THREADS}",
        f"-DBUSBAR_BLOCKS={BLOCKS}",
    )


def compile_kernels(device: Device, dtype: np.dtype[np.generic], op: Op | None) -> Kernels:
    """The kernels for a device; CuPy keeps what it has compiled on disk.

    Raises Unsupported for a type without kernels.
    """
    names = ("program", "pass", "wait", "signal")
    found = device.compile(source(), [f"busbar_{name}" for name in names], options(dtype, op))
    return Kernels(*(found[f"busbar_{name}"] for name in names))
