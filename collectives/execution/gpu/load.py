"""The one place that imports CuPy, and says in a sentence why it cannot be used."""

from __future__ import annotations

from typing import Any

from busbar.errors import Unavailable
from busbar.installation import extra


def _extras() -> str:
    return f"{extra('cuda13')} (or [cuda12] for an older driver)"


def load_cupy() -> Any:
    """The module ``cupy``. Raises Unavailable with the remedy; a GPU need not be there."""
    try:
        import cupy
    except ImportError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Unavailable(f"CuPy cannot be used ({reason}); {_extras()}") from None
    return cupy


def count_gpus(cupy: Any) -> int:
    """The number of GPUs that this process sees. Raises Unavailable with what was found instead."""
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Unavailable(f"no GPU can be used here: {error}") from None
    if count < 1:
        raise Unavailable("no GPU is visible here; see CUDA_VISIBLE_DEVICES")
    return count


def load_nccl() -> Any:
    """The module ``cupy.cuda.nccl``. Raises Unavailable where CuPy finds no NCCL."""
    load_cupy()
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise Unavailable(f"CuPy finds no NCCL ({error}); {_extras()}") from None
    if not nccl.available:
        raise Unavailable(f"CuPy finds no NCCL (nvidia-nccl-cu12 or -cu13); {_extras()}")
    return nccl


def version_text(code: int) -> str:
    """NCCL's version: 23203 is 2.32.3, and 2804, from before the scheme changed, 2.8.4."""
    big = 10000 if code >= 10000 else 1000
    return f"{code // big}.{code % big // 100}.{code % 100}"
