"""PCI functions from sysfs: link speeds, NIC ports, and ACS from configuration space."""

from __future__ import annotations

import re
from pathlib import Path

from topology.model.facts import Value
from topology.model.rates import generation

_ACS_CAPABILITY = 0x000D
#: Request, completion and upstream redirect: any of them sends peer traffic to the root complex.
_REDIRECT = 0x04 | 0x08 | 0x10


def function_facts(values: dict[str, str], names: tuple[str, ...]) -> dict[str, Value | None]:
    """The facts of one function by its attributes; unknown speeds and zero widths are none."""
    acs = _integer(values.get("acs_control"), 16)
    return {
        "pci_device": values.get("device"),
        "pcie_gen": generation(values.get("current_link_speed", "")),
        "pcie_gen_max": generation(values.get("max_link_speed", "")),
        "pcie_width": _width(values.get("current_link_width")),
        "pcie_width_max": _width(values.get("max_link_width")),
        "iommu": values.get("iommu_type"),
        "acs": None if acs is None else bool(acs & _REDIRECT),
        "net_names": names or None,
        "net_rate": _net_rate(values),
        "net_state": values.get("infiniband/state") or values.get("net/operstate"),
        "guid": values.get("infiniband/node_guid"),
    }


def acs_control(config: Path) -> int | None:
    """The ACS control register of a port, or None where it has none or may not be read.

    Extended capabilities start at 0x100 and chain by offsets; only root may read that far.
    """
    try:
        data = config.read_bytes()[:4096]
    except OSError:
        return None
    at, seen = 0x100, set()
    while 0x100 <= at <= len(data) - 8 and at not in seen:
        seen.add(at)
        head = int.from_bytes(data[at : at + 4], "little")
        if head & 0xFFFF == _ACS_CAPABILITY:
            return int.from_bytes(data[at + 6 : at + 8], "little")
        at = head >> 20
    return None


def _integer(text: str | None, base: int = 10) -> int | None:
    try:
        return None if text is None else int(text[:16], base)
    except ValueError:
        return None


def _width(text: str | None) -> int | None:
    width = _integer(text)
    # 255 and 0 are sysfs's words for "no link".
    return width if width is not None and 0 < width <= 32 else None


def _net_rate(values: dict[str, str]) -> float | None:
    """Bytes per second: ``200 Gb/sec (4X HDR)`` of RDMA, else Mbit/s of the network interface."""
    match = re.match(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", values.get("infiniband/rate", ""))
    if match:
        return float(match[1]) * 1e9 / 8
    speed = _integer(values.get("net/speed"))
    return speed * 1e6 / 8 if speed is not None and speed > 0 else None
