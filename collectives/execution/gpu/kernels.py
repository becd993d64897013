"""The kernels that plans enqueue between messages (add, divide), and the gate of a stream.

Another kernel counts wrong elements, to check results. Sums of several sources are computed in the
wider type and rounded once. The executor uses the same tables of element types and operations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.gpu.device import Call, DeviceArray, GpuDevice, Kernel, cuda_source
from collectives.schedule.ops import Op

SOURCES = 8  # the most sources that one pass adds
FEWEST_FLOAT8 = (8, 9)  # the first compute capability that converts 8-bit floats
_THREADS = 512
_BLOCKS_PER_SM = 4
# Names in elements.cuh of NumPy's types and operations.
ELEMENTS = {
    "int8": "Int8",
    "uint8": "Uint8",
    "int32": "Int32",
    "uint32": "Uint32",
    "int64": "Int64",
    "uint64": "Uint64",
    "float16": "Half",
    "bfloat16": "Bfloat16",
    "float32": "Float",
    "float64": "Double",
    "float8_e4m3fn": "Float8E4M3",
    "float8_e5m2": "Float8E5M2",
}
OPERATIONS: dict[np.ufunc, str] = {
    np.add: "kSum",
    np.multiply: "kProd",
    np.minimum: "kMin",
    np.maximum: "kMax",
}
AVERAGE = "kAverage"  # for a pass that adds all ranks' contributions


def source() -> str:
    """The CUDA C++ of the kernels that copy and reduce; `options` set type and operation."""
    return cuda_source("between.cu")


def options(dtype: np.dtype[Any], op: Op | None, average: bool = False) -> tuple[str, ...]:
    """The compiler's options for a type and an operation (None if nothing is reduced).

    ``average``: every sum is divided by the number of its addends. Raises Unsupported for a type
    without kernels.
    """
    if dtype.name not in ELEMENTS:
        raise Unsupported(f"no kernels for {dtype.name}; there are: {', '.join(ELEMENTS)}")
    operation = AVERAGE if average else OPERATIONS[np.add if op is None else op.ufunc]
    return (
        "-std=c++17",
        f"-DBUSBAR_ELEMENT={ELEMENTS[dtype.name]}",
        f"-DBUSBAR_OPERATION={operation}",
    )


def require(device: GpuDevice, dtype: np.dtype[Any]) -> None:
    """Raise Unsupported if the device cannot convert the type, as its kernels must."""
    if dtype.name.startswith("float8") and device.capability < FEWEST_FLOAT8:
        raise Unsupported(
            f"{device.name} (compute capability {_dotted(device.capability)})"
            f" cannot add {dtype.name}; {_dotted(FEWEST_FLOAT8)} and later can"
        )


class Kernels:
    """The compiled kernels of one device, each compiled at its first use."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._blocks = _BLOCKS_PER_SM * device.multiprocessors
        self._compiled: dict[tuple[str, ...], dict[str, Kernel]] = {}

    def _kernels_for(self, dtype: np.dtype[Any], op: Op | None) -> dict[str, Kernel]:
        key = options(dtype, op)
        require(self._device, dtype)
        if key not in self._compiled:
            names = ("reduce", "divide", "differ", "gate")
            self._compiled[key] = self._device.compile(source(), names, key)
        return self._compiled[key]

    def _grid(self, elements: int) -> tuple[int]:
        return (max(1, min(self._blocks, -(-elements // _THREADS))),)

    def reduce(
        self, out: DeviceArray, first: DeviceArray, sources: list[DeviceArray], op: Op | None
    ) -> list[Call]:
        """Calls that set ``out`` to ``first`` reduced with all sources, at most 8 in one kernel."""
        kernel = self._kernels_for(out.dtype, op)["reduce"]
        calls: list[Call] = []
        for i in range(0, len(sources), SOURCES):
            some = [array.address for array in sources[i : i + SOURCES]]
            operand = first if i == 0 else out
            head = _head([out.address, operand.address, *some], out.itemsize)
            wide = head is not None and out.size > head
            args = (
                out.address,
                operand.address,
                *some,
                *[0] * (SOURCES - len(some)),
                len(some),
                out.size,
                head or 0,
                int(wide),
            )
            packs = out.size * out.itemsize // 16 if wide else out.size
            calls.append(_launch(kernel, self._grid(packs), args))
        return calls

    def divide(self, out: DeviceArray, by: int) -> Call:
        """A call that divides every element of ``out``."""
        kernel = self._kernels_for(out.dtype, None)["divide"]
        return _launch(kernel, self._grid(out.size), (out.address, by, out.size))

    def differ(self, array: DeviceArray, tile: DeviceArray, count: DeviceArray) -> Call:
        """A call that adds to ``count`` (one uint64) how many elements differ from the tile.

        The tile is repeated over the array. Elements are compared bit by bit: two NaN are equal, 0
        and -0 are not.
        """
        kernel = self._kernels_for(array.dtype, None)["differ"]
        args = array.address, tile.address, array.size, tile.size, count.address
        return _launch(kernel, self._grid(array.size), args)

    def gate(self, word: int, number: int, limit: float, late: int) -> None:
        """Enqueue a gate on the current stream. It opens after ``limit`` seconds at the latest.

        ``word`` and ``late`` are addresses of pinned words. The gate opens when ``word`` reaches
        ``number``; a gate that opens because of ``limit`` sets ``late``.
        """
        kernel = self._kernels_for(np.dtype(np.uint8), None)["gate"]
        kernel((1,), (1,), (word, np.uint32(number), int(limit * 1e9), late))


def _launch(kernel: Kernel, grid: tuple[int], args: tuple[Any, ...]) -> Call:
    return lambda: kernel(grid, (_THREADS,), args)


def _head(addresses: list[int], itemsize: int) -> int | None:
    """Elements before the first 16-byte boundary, or None if it differs between the addresses."""
    offsets = {address % 16 for address in addresses}
    if len(offsets) > 1:
        return None
    bytes_before = -offsets.pop() % 16
    return bytes_before // itemsize if bytes_before % itemsize == 0 else None


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
