"""``nvidia-smi -q -x``: everything about each single GPU, and nothing about pairs."""

from __future__ import annotations

import re
from collections.abc import Callable

from busbar.errors import ProbeError
from topology.model.device import Value, canonical
from topology.model.topology import Kind, Topology
from topology.sources import fabric
from topology.sources.draft import Draft
from topology.sources.text import Node, tree

NAME = "nvidia-smi -q"
#: nvidia-smi's words for "no value".
_NOTHING = re.compile(
    r"(?:\[?N/?A\]?|\[?Not Supported\]?|Unknown Error|None|.*deprecated|Insufficient Permissions|)",
    re.I,
)
_NUMBER = re.compile(r"(-?[0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([A-Za-z%]*)")
_UNITS = {
    "": 1.0, "MiB": 2.0**20, "KiB": 2.0**10, "GiB": 2.0**30, "MHz": 1e6, "W": 1.0, "C": 1.0,
    "%": 1.0, "x": 1.0, "mJ": 1e-3, "J": 1.0,
}  # fmt: skip
#: Compute capability of architectures with NVLink that have only one.
_ARCHITECTURE_SM = {"Volta": 70, "Turing": 75, "Ada Lovelace": 89, "Hopper": 90}
_IDLE = ("gpu_idle",)
_NOT_THROTTLE = (*_IDLE, "applications_clocks_setting", "display_clocks_setting")
#: A fact, its paths (the first one with a value is used), and the function that reads it.
_Row = tuple[str, tuple[str, ...], Callable[[str], Value | None]]


def _number(text: str) -> float | None:
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] not in _UNITS:
        return None
    return float(match[1]) * _UNITS[match[2]]


def _whole(text: str) -> int | None:
    number = _number(text)
    return None if number is None else round(number)


def _switch(text: str) -> bool | None:
    return {"enabled": True, "yes": True, "disabled": False, "no": False}.get(text.lower())


_ROWS: tuple[_Row, ...] = (
    ("model", ("product_name",), str),
    ("vbios", ("vbios_version",), str),
    ("pcie_gen", ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",), _whole),
    ("pcie_gen_max", ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",), _whole),
    ("pcie_gen_device_max", ("pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",), _whole),
    ("port_gen_max", ("pci/pci_gpu_link_info/pcie_gen/max_host_link_gen",), _whole),
    ("pcie_width", ("pci/pci_gpu_link_info/link_widths/current_link_width",), _whole),
    ("pcie_width_max", ("pci/pci_gpu_link_info/link_widths/max_link_width",), _whole),
    ("pstate", ("performance_state",), str),
    ("clock_sm_hz", ("clocks/sm_clock",), _number),
    ("clock_sm_app_hz", ("applications_clocks/graphics_clock",), _number),
    ("clock_sm_max_hz", ("max_clocks/sm_clock",), _number),
    ("clock_memory_hz", ("clocks/mem_clock",), _number),
    ("clock_memory_app_hz", ("applications_clocks/mem_clock",), _number),
    ("clock_memory_max_hz", ("max_clocks/mem_clock",), _number),
    ("memory", ("fb_memory_usage/total",), _whole),
    ("memory_used", ("fb_memory_usage/used",), _whole),
    ("bar1", ("bar1_memory_usage/total",), _whole),
    ("temperature_c", ("temperature/gpu_temp",), _number),
    ("temperature_slowdown_c", ("temperature/gpu_temp_slow_threshold",), _number),
    ("power_w", (
        "gpu_power_readings/average_power_draw", "gpu_power_readings/power_draw",
        "gpu_power_readings/instant_power_draw", "power_readings/power_draw",
    ), _number),
    ("power_limit_w", (
        "gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit",
        "power_readings/power_limit",
    ), _number),
    ("power_default_w", (
        "gpu_power_readings/default_power_limit", "power_readings/default_power_limit",
    ), _number),
    ("utilization_percent", ("utilization/gpu_util",), _number),
    ("ecc", ("ecc_mode/current_ecc",), _switch),
    ("virtualization", ("gpu_virtualization_mode/virtualization_mode",), str),
    ("mig", ("mig_mode/current_mig",), _switch),
    ("c2c", ("c2c_mode",), _switch),
    ("rows_pending", ("remapped_rows/remapped_row_pending", "retired_pages/pending_retirement"),
    _switch),
    ("rows_failed", ("remapped_rows/remapped_row_failure",), _switch),
    ("fabric_state", ("fabric/state",), str.lower),
    ("fabric_health", ("fabric/health/summary",), str.lower),
)  # fmt: skip
#: Facts whose absence becomes a gap. Many cards lack application clocks and ECC.
_WANTED = frozenset({"pcie_gen", "pcie_width", "power_w", "temperature_c"})


def parse(text: str) -> Topology:
    """Parse the XML. Raises ProbeError, with the line, for other XML or a GPU without bus id."""
    root = tree(NAME, text)
    if root.tag != "nvidia_smi_log":
        raise ProbeError(NAME, f"the root is <{root.tag}>, not <nvidia_smi_log>", root.line)
    draft = Draft(NAME)
    for fact in ("driver_version", "cuda_version"):
        draft.machine(**{fact: _value(root, fact)})
    seen: set[str] = set()
    for index, node in enumerate(root.all("gpu")):
        busid = canonical(node.get("id") or node.at("pci/pci_bus_id") or "")
        if busid is None:
            raise ProbeError(NAME, f"a GPU has the bus id {node.get('id')!r}", node.line)
        if busid in seen:
            raise ProbeError(NAME, f"{busid} appears twice", node.line)
        seen.add(busid)
        _gpu(draft, index, busid, node)
    attached = _value(root, "attached_gpus") or ""
    if attached.isdecimal() and int(attached[:9]) != len(seen) and seen:
        draft.gap(
            "machine", "attached_gpus", f"{attached} GPUs are attached, {len(seen)} are described"
        )
    return draft.build()


def _value(node: Node, path: str) -> str | None:
    text = node.at(path)
    return None if text is None or _NOTHING.fullmatch(text) else text


def _gpu(draft: Draft, index: int, busid: str, node: Node) -> None:
    id = draft.add(
        f"GPU{index}",
        Kind.GPU,
        index,
        name=_value(node, "product_name") or "",
        busid=busid,
        uuid=_value(node, "uuid"),
        sm=_ARCHITECTURE_SM.get(_value(node, "product_architecture") or ""),
    )
    for fact, paths, read_value in _ROWS:
        stated = next((text for path in paths if (text := _value(node, path)) is not None), None)
        value = None if stated is None else read_value(stated)
        draft.state(id, **{fact: value})
        if value is None and fact in _WANTED:
            raw = next((t for path in paths if (t := node.at(path)) is not None), "absent")
            draft.gap(id, fact, raw[:80] or "empty")
    _device_id(draft, id, node)
    _fabric(draft, id, node)
    _throttle(draft, id, node)
    _errors(draft, id, node)
    _mig(draft, id, node)
    processes = next(iter(node.all("processes")), None)
    if processes is not None:
        kinds = [info.at("type") or "" for info in processes.all("process_info")]
        draft.state(id, processes=sum("C" in kind for kind in kinds))


def _device_id(draft: Draft, id: str, node: Node) -> None:
    code = _value(node, "pci/pci_device_id") or ""
    if re.fullmatch("(?:0x)?[0-9A-Fa-f]{8}", code):
        digits = code[-8:].lower()
        draft.state(id, pci_device=f"0x{digits[:4]}", vendor=f"0x{digits[4:]}")


def _fabric(draft: Draft, id: str, node: Node) -> None:
    """State the fabric's registration and problems; an unknown error is an error, not a gap."""
    status = (node.at("fabric/status") or "").lower()
    unknown = "unknown error" if status == "unknown error" else None
    draft.state(
        id,
        fabric_status=unknown or (_value(node, "fabric/status") or "").lower() or None,
        fabric_problems=fabric.problems(lambda name: _value(node, f"fabric/health/{name}")),
    )


def _throttle(draft: Draft, id: str, node: Node) -> None:
    for name in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for reasons in node.all(name):
            active = [
                re.sub(r"^clocks_(?:event|throttle)_reason_", "", child.tag)
                for child in reasons.children
                if child.text.strip() == "Active"
            ]
            slow = tuple(sorted(reason for reason in active if reason not in _NOT_THROTTLE))
            draft.state(id, throttle=slow, idle=any(reason in _IDLE for reason in active))
            return


def _errors(draft: Draft, id: str, node: Node) -> None:
    """Sum error counters; names changed with Turing and with Hopper's split of SRAM errors."""
    for scope, ending in (("volatile", ""), ("aggregate", "_lifetime")):
        by_name: dict[str, int] = {}
        counts = next((c for e in node.all("ecc_errors") for c in e.all(scope)), None)
        for counter in counts.walk() if counts is not None else ():
            number = _whole(counter.text.strip())
            kind = _error_kind(counter.tag)
            if number is not None and kind:
                by_name[kind] = by_name.get(kind, 0) + number
        for bits, kind in (("single_bit", "ecc_corrected"), ("double_bit", "ecc_uncorrected")):
            old = counts.at(f"{bits}/total") if counts is not None else None
            if old is not None and (number := _whole(old)) is not None:
                by_name[kind] = number
        if "ecc_uncorrected" in by_name:
            draft.state(id, **{f"ecc_uncorrected{ending}": by_name["ecc_uncorrected"]})
        if scope == "volatile" and "ecc_corrected" in by_name:
            draft.state(id, ecc_corrected=by_name["ecc_corrected"])


def _error_kind(tag: str) -> str | None:
    if re.fullmatch(r"(?:s|d)ram_correctable", tag):
        return "ecc_corrected"
    if re.fullmatch(r"(?:s|d)ram_uncorrectable(?:_parity|_secded)?", tag):
        return "ecc_uncorrected"
    return None


def _mig(draft: Draft, gpu: str, node: Node) -> None:
    for devices in node.all("mig_devices"):
        for position, mig in enumerate(devices.all("mig_device")):
            number = _whole(mig.at("index") or "")
            index = position if number is None else number
            if f"{gpu}/MIG{index}" in draft.devices:
                raise ProbeError(NAME, f"MIG device {index} of {gpu} appears twice", mig.line)
            memory = _value(mig, "fb_memory_usage/total")
            units = _value(mig, "device_attributes/shared/multiprocessor_count")
            draft.add(
                f"{gpu}/MIG{index}",
                Kind.MIG,
                index,
                uuid=_value(mig, "uuid"),
                parent=gpu,
                memory=_whole(memory) if memory else None,
                multiprocessors=_whole(units) if units else None,
            )
