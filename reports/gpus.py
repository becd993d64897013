"""What a record says of its GPUs, as figures of the row. No I/O.

An entry of `Result.gpus` is a mapping: ``placement``, ``rank`` (the first that uses the GPU),
``busid``, ``uuid``, ``name``, ``samples``, ``seconds`` (the window in which the operations ran),
``operations``, ``clock_sm_hz``, ``clock_memory_hz``, ``power_w`` and ``temperature_c`` (least,
median and most of the samples each), ``throttle`` (reasons seen), ``idle_w``, ``energy_j`` (of the
window, by the GPU's counter) and ``energy_per_op_j``. What a GPU does not say is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.record import Result

__all__ = ["energy", "memory_clock", "of_placement"]


def of_placement(result: Result, placement: str) -> list[Mapping[str, Any]]:
    """The entries of the GPUs for one placement, ``out`` or ``in``."""
    return [gpu for gpu in result.gpus if gpu.get("placement") == placement]


def memory_clock(result: Result, placement: str) -> float | None:
    """The lowest of the GPUs' median memory clocks in Hz; None where none is known."""
    clocks = [_number(gpu.get("clock_memory_hz"), 1) for gpu in of_placement(result, placement)]
    return min((c for c in clocks if c is not None), default=None)


def energy(result: Result, placement: str) -> float | None:
    """Joules of all GPUs for one operation, idle power taken off; None unless every GPU says."""
    each = [_number([gpu.get("energy_per_op_j")], 0) for gpu in of_placement(result, placement)]
    known = [e for e in each if e is not None]
    return sum(known) if known and len(known) == len(each) else None


def _number(values: object, at: int) -> float | None:
    """A value of a list from a file; None when it is no number."""
    if not isinstance(values, (list, tuple)) or len(values) <= at:
        return None
    found = values[at]
    return float(found) if isinstance(found, (int, float)) else None
