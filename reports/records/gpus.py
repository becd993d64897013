"""Quantities of a row from the GPU samples of its record. No I/O.

An entry of `Result.gpus` is a mapping: ``placement``, ``rank`` (the first that uses the GPU),
``busid``, ``uuid``, ``name``, ``samples``, ``seconds`` (the window in which the operations ran),
``operations``, ``clock_sm_hz``, ``clock_memory_hz``, ``power_w`` and ``temperature_c`` (least,
median and most of the samples each), ``throttle`` (reasons seen), ``idle_w``, ``energy_j`` (of the
window, by the GPU's counter) and ``energy_per_op_j``. What a GPU does not say is absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# By how much clocks may differ, between GPUs or in time, before it is said: memory runs at one of a
# few fixed clocks, SMs step up and down all the time.
_STEADY = {"clock_memory_hz": ("memory", 0.01), "clock_sm_hz": ("SM", 0.05)}
_TITLES = {"out": "out-of-place", "in": "in-place"}


Gpus = Sequence[Mapping[str, Any]]


def of_placement(gpus: Gpus, placement: str) -> Gpus:
    """The entries for one placement, ``out`` or ``in``."""
    return [gpu for gpu in gpus if gpu.get("placement") == placement]


def memory_clock(gpus: Gpus, placement: str) -> float | None:
    """The lowest of the GPUs' median memory clocks in Hz; None where none is known."""
    clocks = [_number(gpu.get("clock_memory_hz"), 1) for gpu in of_placement(gpus, placement)]
    return min((c for c in clocks if c is not None), default=None)


def energy(gpus: Gpus, placement: str) -> float | None:
    """Joules of all GPUs for one operation, idle power taken off; None unless every GPU says."""
    each = [_number([gpu.get("energy_per_op_j")], 0) for gpu in of_placement(gpus, placement)]
    known = [e for e in each if e is not None]
    return sum(known) if known and len(known) == len(each) else None


def warnings(gpus: Gpus) -> list[str]:
    """Warnings about clocks: different between GPUs, moving, throttled."""
    said: list[str] = []
    for placement, title in _TITLES.items():
        here = of_placement(gpus, placement)
        for name, (what, share) in _STEADY.items():
            clocks = {_called(g): c for g in here if (c := _number(g.get(name), 1)) is not None}
            if clocks and max(clocks.values()) > (1 + share) * min(clocks.values()):
                slow, fast = (pick(clocks, key=clocks.__getitem__) for pick in (min, max))
                said.append(
                    f"{title}: {what} clocks differ between GPUs: {slow} {_mhz(clocks[slow])},"
                    f" {fast} {_mhz(clocks[fast])}"
                )
            said += [
                f"{title}: the {what} clock of {_called(gpu)} moved"
                f" from {_mhz(low)} to {_mhz(high)}"
                for gpu in here
                if (low := _number(gpu.get(name), 0)) is not None
                and (high := _number(gpu.get(name), 2)) is not None
                and high > (1 + share) * low
            ]
        said += [
            f"{title}: {_called(gpu)} was slowed by {', '.join(map(str, gpu['throttle']))}"
            for gpu in here
            if isinstance(gpu.get("throttle"), (list, tuple)) and gpu["throttle"]
        ]
    return said


def _called(gpu: Mapping[str, Any]) -> str:
    """A GPU by its first rank and its address."""
    return f"rank {gpu.get('rank', '?')} ({gpu.get('busid') or gpu.get('uuid') or '?'})"


def _mhz(clock: float) -> str:
    return f"{clock / 1e6:.0f} MHz"


def _number(values: object, at: int) -> float | None:
    """A value of a list from a file; None when it is no number."""
    if not isinstance(values, (list, tuple)) or len(values) <= at:
        return None
    found = values[at]
    return float(found) if isinstance(found, (int, float)) else None
