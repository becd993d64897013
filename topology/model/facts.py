"""Facts with their provenance; docs/topology.md lists the names that they have.

Bytes, seconds and bytes per second inside; any other unit stands in the name. A name that no list
has is allowed and shown, never interpreted.
"""

from __future__ import annotations

from dataclasses import dataclass

Value = str | int | float | bool | tuple[str, ...] | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True)
class Fact:
    """One statement by one source: ``Fact("pcie_gen", 4, "nvml")``."""

    name: str
    value: Value
    source: str


@dataclass(frozen=True)
class Gap:
    """A question that a source did not answer, or a statement that the map did not take.

    ``call`` is COUNT where devices of the text are missing in the map.
    """

    source: str
    subject: str
    call: str
    reason: str


#: The ``call`` of a gap that compares the number of devices in a text and in the map.
COUNT = "count"

#: Facts in which two sources may differ and both be right: they change from one moment to the next,
#: or every source spells them in its own way.
VOLATILE = frozenset({
    "label", "guid", "net_names", "pcie_gen", "pcie_rate", "clock_sm_hz", "clock_memory_hz",
    "throttle", "idle", "pstate", "power_w", "energy_j", "temperature_c", "memory_used",
    "processes", "utilization_percent", "net_state", "nvlink_errors", "ecc_corrected",
})  # fmt: skip
#: Facts of a pair that hold both ways; the others are directed.
SYMMETRIC = frozenset({"level", "nvlinks"})
