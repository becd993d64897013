"""A vector in a GPU's memory: an address, a length and a NumPy type.

CuPy's own arrays lack types that we move (bfloat16 before CuPy 14, float8 in any), and their memory
comes from a pool whose allocations cannot be shared through an IPC handle. It has no arithmetic;
kernels compute on its address.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class DeviceArray:
    """``size`` elements of ``dtype`` from ``address`` on; slices and views share the memory.

    ``owner`` keeps the memory alive. ``runtime`` is ``cupy.cuda.runtime``. Assigning to a slice and
    `host` copy through the host and return when the copy is complete; neither waits for
    non-blocking streams: synchronise those first.
    """

    def __init__(
        self, runtime: Any, address: int, size: int, dtype: DTypeLike, owner: object
    ) -> None:
        self._runtime, self._owner = runtime, owner
        self.address, self.size, self.dtype = address, size, np.dtype(dtype)

    def __len__(self) -> int:
        return self.size

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the interface; types that it cannot name appear as their bytes.

        A stream of None: whoever takes the memory need not wait for anything.
        """
        plain = self.dtype.kind in "iuf" and self.dtype.isbuiltin == 1
        return {
            "shape": (self.size if plain else self.nbytes,),
            "typestr": self.dtype.str if plain else "|u1",
            "data": (self.address, False),
            "version": 3,
            "stream": None,
        }

    def view(self, dtype: DTypeLike) -> DeviceArray:
        """The same bytes as elements of another type.

        Raises ValueError where they do not divide.
        """
        kind = np.dtype(dtype)
        if self.nbytes % kind.itemsize:
            raise ValueError(f"{self.nbytes} bytes are no whole number of {kind.name}")
        return DeviceArray(
            self._runtime, self.address, self.nbytes // kind.itemsize, kind, self._owner
        )

    def __getitem__(self, where: slice) -> DeviceArray:
        start, stop = self._span(where)
        address = self.address + start * self.itemsize
        return DeviceArray(self._runtime, address, stop - start, self.dtype, self._owner)

    def __setitem__(self, where: slice, value: int | NDArray[Any]) -> None:
        """A slice becomes a host array of its length, or every byte of it the value (0 to 255)."""
        part, runtime = self[where], self._runtime
        if not part.size:
            return
        if isinstance(value, int):
            if self.itemsize != 1:
                raise ValueError("only bytes can be set to one value; view as uint8 first")
            runtime.memsetAsync(part.address, value, part.nbytes, 0)
        else:
            source = np.ascontiguousarray(value, dtype=self.dtype)
            if source.shape != (part.size,):
                raise ValueError(f"{source.shape} elements do not fit {part.size}")
            runtime.memcpy(
                part.address, source.ctypes.data, part.nbytes, runtime.memcpyHostToDevice
            )
        # A copy from pageable memory may still be under way when the call returns.
        runtime.streamSynchronize(0)

    def host(self) -> NDArray[Any]:
        """A copy in host memory."""
        result = np.empty(self.size, self.dtype)
        if self.size:
            runtime = self._runtime
            kind = runtime.memcpyDeviceToHost
            runtime.memcpy(result.ctypes.data, self.address, self.nbytes, kind)
        return result

    def _span(self, where: slice) -> tuple[int, int]:
        start, stop, step = where.indices(self.size)
        if step != 1:
            raise ValueError("device memory is sliced without a step")
        return start, max(start, stop)
