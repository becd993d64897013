"""The words through which ranks tell each other how far they are: how many, and where they lie."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collectives.transport import Array

__all__ = ["LINE", "plan_bytes", "words"]

LINE = 128
"""Bytes between two words: prefetchers fetch cache lines in pairs."""
_GATES = 3


def plan_bytes(nranks: int) -> int:
    """Bytes of a plan's lines, as `plan_lines` in native/src/plans.hpp counts them."""
    return ((1 + _GATES) * nranks + _GATES) * LINE


def words(lines: Array) -> NDArray[np.uint64]:
    """The first word of every line of a control segment."""
    return lines[: len(lines) // LINE * LINE].view(np.uint64)[:: LINE // 8]
