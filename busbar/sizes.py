"""Sizes as nccl-tests reads them: binary K, M, G; sweeps by factor or increment; rank counts."""

from __future__ import annotations

import re

from busbar.errors import Unsupported

MOST_RANKS = 1024
#: An address space has fewer bytes, and a sweep of so many sizes has no end.
MOST_BYTES = 2**48
_MOST_SIZES = 10_000
_MOST_DIGITS = 18
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_size(text: str) -> int:
    """Bytes from ``1M``, ``64k``, ``4096``. Raises Unsupported for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)[iI]?[bB]?\s*", text)
    if not found:
        raise Unsupported(f"{text[:40]!r} is no size; write bytes or 64K, 1M, 1G (binary)")
    value = float(found[1]) * _UNITS[found[2].upper()]
    if value > MOST_BYTES:
        raise Unsupported(
            f"{text[:40]} is more than any memory has; sizes go to {short(MOST_BYTES)}"
        )
    return int(value)


def human(nbytes: float) -> str:
    """Bytes for people: ``1 GiB``, ``33.2 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


def short(nbytes: int) -> str:
    """Bytes as they may be given, to three digits: ``64K``, ``1.5M``, ``1000``."""
    value, unit = float(nbytes), ""
    for unit_ in "KMGT":
        if value < 1024:
            break
        value, unit = value / 1024, unit_
    return f"{value:.4g}{unit}" if value >= 1000 else f"{value:.3g}{unit}"


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
        if (high - low) // step >= _MOST_SIZES:
            raise Unsupported(
                f"-i {step} makes {(high - low) // step + 1} sizes; give a larger increment, or -f"
            )
        return list(range(low, high + 1, step))
    factor = 2.0 if factor is None else factor
    if not 1 < factor < float("inf"):
        if low == high:
            return [low]
        raise Unsupported(f"-f {factor:g} does not advance; give a factor above 1")
    sizes: list[int] = []
    size = float(low)
    while size <= high:
        if not sizes or int(size) > sizes[-1]:
            sizes.append(int(size))
        if len(sizes) > _MOST_SIZES:
            raise Unsupported(
                f"-f {factor:.15g} makes more than {_MOST_SIZES} sizes; give a larger one"
            )
        size = max(size * factor, size + 1)
    return sizes


def ranks(text: str, most: int = MOST_RANKS) -> list[int]:
    """The rank counts of ``2-8,16``. Raises Unsupported for what is none, or above ``most``."""
    found: list[int] = []
    for part in text.split(","):
        span = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part, re.ASCII)
        if span is None:
            raise Unsupported(f"-n {text[:80]}: {part[:40]!r} is no rank count; write 8, or 2-8,16")
        ends = [end or span[1] for end in span.groups()]
        if max(map(len, ends)) > _MOST_DIGITS or int(ends[1]) > most:
            raise Unsupported(f"-n {text[:80]}: rank counts go from 1 to {most}")
        found += range(int(ends[0]), int(ends[1]) + 1)
    if not found or min(found) < 1:
        raise Unsupported(f"-n {text[:80]}: rank counts go from 1 to {most}")
    return found
