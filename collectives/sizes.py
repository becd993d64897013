"""Sizes as nccl-tests reads them: binary K, M, G; sweeps by factor or increment."""

from __future__ import annotations

import re

from collectives.errors import Unsupported

__all__ = ["human", "parse_size", "sweep"]

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_size(text: str) -> int:
    """Bytes from ``1M``, ``64k``, ``4096``. Raises Unsupported for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)[iI]?[bB]?\s*", text)
    if not found:
        raise Unsupported(f"{text!r} is no size; write bytes or 64K, 1M, 1G (binary)")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def human(nbytes: float) -> str:
    """Bytes for people: ``1 GiB``, ``33.2 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


def sweep(low: int, high: int, *, factor: float | None, step: int | None) -> list[int]:
    """The sizes from ``low`` to ``high``, multiplied by ``factor`` or raised by ``step``.

    Raises Unsupported when the sweep is empty or would not advance.
    """
    if low > high:
        raise Unsupported(
            f"-b {human(low)} is above -e {human(high)}; give a minimum not above the maximum"
        )
    if step is not None:
        if step < 1:
            raise Unsupported(f"-i {step} does not advance; give an increment of at least 1")
        return list(range(low, high + 1, step))
    factor = 2.0 if factor is None else factor
    if factor <= 1:
        if low == high:
            return [low]
        raise Unsupported(f"-f {factor:g} does not advance; give a factor above 1")
    sizes: list[int] = []
    size = float(low)
    while size <= high:
        if not sizes or int(size) > sizes[-1]:
            sizes.append(int(size))
        size = max(size * factor, size + 1)
    return sizes
