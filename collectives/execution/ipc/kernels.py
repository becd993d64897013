"""The CUDA executor from ``native/cuda``: the one place that finds, assembles and compiles it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.gpu.compile import cuda_source
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.gpu.handles import Kernel
from collectives.execution.shm.fast import op_number, type_number
from collectives.schedule.ops import Op

__all__ = ["PLAIN", "PassKernels", "Variant", "compile_kernels", "options", "source"]

_FEWEST_THREADS = 128
_BULK_SINCE = (9, 0)


@dataclass(frozen=True)
class Variant:
    """What the compiler is told of the executor beside type and operation (``native/cuda/variant.cuh``).

    ``threads`` of a block, and ``blocks`` that a multiprocessor must hold at once, for which the
    compiler limits its registers. ``chunk``: bytes dealt out to the blocks in turns, a multiple of
    16; 0: each has one contiguous part. All ranks of a transport have the same.
    """

    threads: int = 512
    blocks: int = 2
    chunk: int = 0
    no_allocate: bool = False
    streaming: bool = False
    relaxed: bool = False
    bulk: bool = False

    def defined(self) -> dict[str, int]:
        """The macros, as ``BUSBAR_THREADS``."""
        return {f"BUSBAR_{name.upper()}": int(value) for name, value in asdict(self).items()}


PLAIN = Variant()
# In the order of collectives.execution.shm.fast's type and operation numbers.
ELEMENTS = (
    "Int8", "Uint8", "Int32", "Uint32", "Int64", "Uint64", "Half", "Bfloat16", "Float", "Double",
)  # fmt: skip
OPERATIONS = ("kSum", "kProd", "kMin", "kMax")


@dataclass(frozen=True)
class PassKernels:
    """The kernels for one element type and operation; see ``native/cuda/busbar.cu``."""

    program: Kernel
    move: Kernel
    wait: Kernel
    signal: Kernel
    threads: int
    """Of a block of the first two."""


def source() -> str:
    """The CUDA C++ of the executor, in one piece."""
    return cuda_source("busbar.cu")


def options(
    dtype: np.dtype[np.generic], op: Op | None, variant: Variant = PLAIN
) -> tuple[str, ...]:
    """What the compiler is told for an element type and an operation.

    Raises Unsupported for a type without kernels.
    """
    return (
        "-std=c++17",
        f"-DBUSBAR_ELEMENT={ELEMENTS[type_number(dtype)]}",
        f"-DBUSBAR_OPERATION={OPERATIONS[op_number(op)]}",
        *(f"-D{name}={value}" for name, value in variant.defined().items()),
    )


def compile_kernels(
    device: GpuDevice, dtype: np.dtype[np.generic], op: Op | None, variant: Variant
) -> PassKernels:
    """The kernels for a device, with as many threads a block as let it hold ``variant.blocks``.

    All blocks of all ranks wait for each other, so they must be resident at once. Raises Unsupported
    for a type without kernels, and where even few threads are too many.
    """
    if variant.bulk and device.capability < _BULK_SINCE:
        raise Unsupported(f"{device.name} has no bulk copies; compute capability 9.0 has")
    threads = variant.threads
    while threads >= _FEWEST_THREADS:
        kernels = _compiled(device, dtype, op, replace(variant, threads=threads))
        device.carve(kernels.program, variant.blocks)
        if device.resident(kernels.program, threads) >= variant.blocks:
            return kernels
        threads //= 2
    raise Unsupported(
        f"{device.name} does not hold {variant.blocks} blocks of {2 * threads} threads of our kernel"
        " on a multiprocessor at once"
    )


def _compiled(
    device: GpuDevice, dtype: np.dtype[np.generic], op: Op | None, variant: Variant
) -> PassKernels:
    names = {
        "program": "busbar_program",
        "move": "busbar_pass",
        "wait": "busbar_wait",
        "signal": "busbar_signal",
    }
    found = device.compile(source(), list(names.values()), options(dtype, op, variant))
    made = {name: found[kernel] for name, kernel in names.items()}
    return PassKernels(**made, threads=variant.threads)
