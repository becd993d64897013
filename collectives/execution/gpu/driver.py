"""Direct calls to NVIDIA's driver library, for what CuPy does not offer."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_LIBRARY = "libcuda.so.1"
_UUID_BYTES = 16


class Driver:
    """``libcuda`` through ctypes, whose calls let other threads of the interpreter go on."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def query(self, stream: int) -> int:
        """The number of a stream's CUresult: 0 done, 600 not yet; the runtime's have the same."""
        return int(self._library.cuStreamQuery(ctypes.c_void_p(stream)))

    def uuid(self, index: int) -> bytes:
        """The 16 bytes of a GPU's identity; empty where the driver does not say."""
        number, found = ctypes.c_int(), (ctypes.c_ubyte * _UUID_BYTES)()
        status = self._library.cuDeviceGet(ctypes.byref(number), ctypes.c_int(index))
        status = status or self._library.cuDeviceGetUuid_v2(ctypes.byref(found), number)
        return b"" if status else bytes(found)


def driver(cupy: Any) -> Driver | None:
    """The driver below ``cupy``; None where its library is not found.

    Another module in CuPy's place has streams of its own, which the driver does not know.
    """
    if sys.modules.get("cupy") is not cupy:
        return None
    try:
        return Driver(ctypes.CDLL(_LIBRARY))
    except OSError:
        return None
