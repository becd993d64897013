"""Sets of CPUs and nodes in the two formats of Linux: lists (0-3,8) and masks (ff,ffffffff)."""

from __future__ import annotations

from collections.abc import Iterable

MAX_CPU = 1 << 16


def members(text: str) -> list[int] | None:
    """The numbers of a list such as ``0-3,8``, in order.

    None if the text is no such list or has a number of MAX_CPU or more.
    """
    cpus: set[int] = set()
    for part in text.strip().split(","):
        low, dash, high = part.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            return None
        first, last = int(low[:9]), int((high or low)[:9])
        if not first <= last < MAX_CPU:
            return None
        cpus.update(range(first, last + 1))
    return sorted(cpus)


def listed(numbers: Iterable[int]) -> str:
    """Numbers as a list such as ``0-3,8``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def from_mask(text: str) -> str | None:
    """Convert a mask, in words of 32 bits with commas and the highest first, to a list; or None.

    hwloc writes 0x before words and leaves zero words empty; cloud files lack leading zeros.
    """
    value = 0
    for word in text.strip().split(","):
        digits = word.strip().removeprefix("0x") or "0"
        if len(digits) > 8 or any(c not in "0123456789abcdefABCDEF" for c in digits):
            return None
        value = value << 32 | int(digits, 16)
        if value.bit_length() > MAX_CPU:
            return None
    return listed(bit for bit in range(value.bit_length()) if value >> bit & 1)


def mask(numbers: Iterable[int]) -> str:
    """Numbers as a mask in words of 32 bits, separated by commas."""
    value = sum(1 << number for number in set(numbers))
    words = max(1, -(-value.bit_length() // 32))
    return ",".join(f"{value >> 32 * n & 0xFFFFFFFF:08x}" for n in reversed(range(words)))
