"""The CUDA executor from ``native/cuda``: the one place that finds, assembles and compiles it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.gpu import kernels
from collectives.execution.gpu.compile import cuda_source
from collectives.execution.gpu.device import SHARED_BLOCKS, GpuDevice
from collectives.execution.gpu.handles import Kernel
from collectives.schedule.ops import Op

#: Threads of a block, and blocks that a multiprocessor must hold at once, for which the compiler
#: limits its registers.
THREADS, BLOCKS = 512, SHARED_BLOCKS
_FEWEST_THREADS = 128


@dataclass(frozen=True)
class PassKernels:
    """The kernel for one element type and operation (``native/cuda/busbar.cu``), and its block."""

    program: Kernel
    threads: int


def source() -> str:
    """The CUDA C++ of the executor, in one piece."""
    return cuda_source("busbar.cu")


def options(
    dtype: np.dtype[np.generic], op: Op | None, threads: int = THREADS, *, average: bool = False
) -> tuple[str, ...]:
    """The compiler's options for an element type and an operation.

    ``average``: every sum is divided by the number of what was added. Raises Unsupported for a type
    without kernels.
    """
    return (
        *kernels.options(dtype, op, average),
        f"-DBUSBAR_THREADS={threads}",
        f"-DBUSBAR_BLOCKS={BLOCKS}",
    )


def compile_kernels(
    device: GpuDevice, dtype: np.dtype[np.generic], op: Op | None, *, average: bool = False
) -> PassKernels:
    """The kernel for a device, with as many threads a block as let it hold ``BLOCKS``.

    All blocks of all ranks wait for each other, so they must be resident at once. Raises
    Unsupported for a type without kernels, and where even few threads are too many.
    """
    kernels.require(device, dtype)
    threads, name = THREADS, "busbar_program"
    while threads >= _FEWEST_THREADS:
        given = options(dtype, op, threads, average=average)
        kernel = device.compile(source(), [name], given)[name]
        if device.resident(kernel, threads) >= BLOCKS:
            return PassKernels(kernel, threads)
        threads //= 2
    raise Unsupported(
        f"{device.name} does not hold {BLOCKS} blocks of {2 * threads} threads of our kernel"
        " on a multiprocessor at once"
    )
