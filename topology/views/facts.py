"""Facts about a device in a few words, with readable units."""

from __future__ import annotations

from collections.abc import Callable

from busbar.units import format_bytes, format_frequency, format_rate
from topology.model.device import Device, Kind, Value
from topology.model.map import Map


def _rate(value: float) -> str:
    return f"{format_rate(value, '.4g')} GB/s"


_UNITS: dict[str, Callable[[float], str]] = {
    "memory": format_bytes,
    "memory_used": format_bytes,
    "bar1": format_bytes,
    "size": format_bytes,
    "pcie_rate": _rate,
    "net_rate": _rate,
    "nvlink_rate": _rate,
    "copy_rate": _rate,
    "host_to_device": _rate,
    "device_to_host": _rate,
    "host_both": _rate,
}


def shown(name: str, value: Value) -> str:
    """The value with its unit: ``1.771 GHz``, ``80 GiB``, ``25 GB/s``, or as it is."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        unit = format_frequency if name.endswith("_hz") else _UNITS.get(name)
        return unit(float(value)) if unit else f"{value:g}"
    return value


def title(device: Device) -> str:
    """The id with product or interface names: ``NIC0 mlx5_0``."""
    words = [device.id, str(device.get("model") or ""), *device.net_names]
    return " ".join(dict.fromkeys(w for w in words if w == device.id or w not in device.id))


def summary(topology: Map, device: Device) -> str:
    """The facts about a device in a line of the tree; "" if there are none."""
    words: list[str] = []
    if device.busid and device.busid not in device.id:
        words.append(device.busid)
    if device.kind in (Kind.GPU, Kind.NIC, Kind.BRIDGE):
        gen = device.get("pcie_gen_max") or device.get("pcie_gen")
        width = device.get("pcie_width") or device.get("pcie_width_max")
        if gen or width:
            words.append(f"PCIe{f' gen{gen}' if gen else ''}{f' x{width}' if width else ''}")
    for name in ("memory", "size", "net_rate", "cpus", "net_state"):
        value = device.get(name)
        if value is not None:
            words.append(f"CPUs {value}" if name == "cpus" else shown(name, value))
    if device.kind is Kind.GPU:
        words += _peers(topology, device)
    return ", ".join(words)


def _peers(topology: Map, gpu: Device) -> list[str]:
    """``NVLink x12 to every GPU``, or each peer with its links where they differ."""
    counts = {
        other.id: topology.nvlinks(gpu.id, other.id)
        for other in topology.gpus
        if other.id != gpu.id
    }
    if not any(counts.values()):
        return []
    if len(counts) > 1 and len(set(counts.values())) == 1:
        return [f"NVLink x{next(iter(counts.values()))} to every GPU"]
    listed = ", ".join(f"{id} x{count}" for id, count in counts.items() if count)
    return [f"NVLink to {listed}"]


def everything(device: Device) -> list[str]:
    """All facts, one a line, each with who says so: ``pcie_width: 8 (sysfs)``."""
    known = (("name", device.name), ("bus id", device.busid), ("uuid", device.uuid))
    lines = [f"{name}: {value}" for name, value in known if value]
    return lines + [f"{f.name}: {shown(f.name, f.value)} ({f.source})" for f in device.facts]
