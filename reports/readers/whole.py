"""Whether a figure is whole: a text that is cut inside a figure must not give the part as one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from reports.readers.text import Line

_FIXED = re.compile(r"\d{1,18}\.(\d{1,12})", re.ASCII)


def open_line(lines: Sequence[Line]) -> int:
    """The number of the last line if the text has no line end behind it, else 0.

    The text may be cut there, so that the last figure of the line may be the part of one.
    """
    return lines[-1].number if lines and lines[-1].text else 0


def fixed(cell: str, *places: int) -> float | None:
    """The figure of a cell that a program prints with so many decimals; None for any other cell."""
    match = _FIXED.fullmatch(cell)
    return float(cell) if match and len(match[1]) in places else None


def places(cell: str) -> int:
    """The number of decimals that a cell was printed with."""
    return len(cell.rpartition(".")[2]) if "." in cell else 0


def agrees(printed: str, expected: float, unit: float = 1.0, slack: float = 0.01) -> bool:
    """Whether a printed figure, in ``unit``, is the expected one within its rounding and slack."""
    value = float(printed) * unit
    return abs(value - expected) <= 0.51 * 10.0 ** -places(printed) * unit + slack * expected
