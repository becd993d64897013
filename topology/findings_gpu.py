"""Findings about GPUs by themselves: clocks, throttling, power, memory errors, models, fabric."""

from __future__ import annotations

from topology.finding import Finding, at_work, likes, listing
from topology.model import Device, Topology

#: Clocks closer than this are the same: drivers round to steps.
_SAME = 0.01
_HARD = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


def memory_errors(topology: Topology) -> list[Finding]:
    """Uncorrected errors end jobs; failed row remapping means that the card must be replaced."""
    found = []
    hurt = [
        (g.id, f"{n:.0f} uncorrected")
        for g in topology.gpus
        if (n := g.number("ecc_uncorrected") or 0) > 0
    ]
    hurt += [(g.id, "row remapping failed") for g in topology.gpus if g.get("rows_failed") is True]
    if hurt:
        found.append(
            Finding("ecc-uncorrected", 1.0, _ids(hurt), "memory errors that ECC could not correct", listing(hurt),
                    "drain the node, reset the GPU, and replace it if errors return")
        )  # fmt: skip
    waiting = [(g.id, "reset pending") for g in topology.gpus if g.get("rows_pending") is True]
    if waiting:
        found.append(
            Finding("ecc-rows-pending", 0.3, _ids(waiting), "bad memory rows wait to be replaced by spare ones",
                    listing(waiting), "reset the GPU (nvidia-smi -r) or reboot")
        )  # fmt: skip
    mild = [
        (g.id, f"{n:.0f} corrected")
        for g in topology.gpus
        if (n := g.number("ecc_corrected") or 0) > 0
    ]
    if mild:
        found.append(
            Finding("ecc-corrected", 0.02, _ids(mild), "ECC corrects memory errors", listing(mild),
                    "watch the count; a rising one announces a failing card")
        )  # fmt: skip
    return found


def ecc_mode(topology: Topology) -> list[Finding]:
    """Like GPUs with and without ECC differ in memory size and bandwidth."""
    found = []
    for group in likes(topology):
        modes = [
            (g.id, "ECC on" if g.get("ecc") else "ECC off")
            for g in group
            if g.get("ecc") is not None
        ]
        if len({mode for _, mode in modes}) > 1:
            found.append(
                Finding("ecc-mode-differs", 0.06, _ids(modes), "like GPUs differ in their ECC mode", listing(modes),
                        "set the same on all: nvidia-smi -e 1, then reset")
            )  # fmt: skip
    return found


def fabric(topology: Topology) -> list[Finding]:
    """An NVSwitch machine without its fabric has no NVLink at all, and CUDA does not start."""
    bad = []
    for gpu in topology.gpus:
        state, status = (
            str(gpu.get("fabric_state") or ""),
            str(gpu.get("fabric_status") or "success"),
        )
        if state in ("not started", "in progress"):
            bad.append((gpu.id, f"fabric {state}"))
        elif state == "completed" and status != "success":
            bad.append((gpu.id, f"fabric registration: {status}"))
    if not bad:
        return []
    return [
        Finding("nvswitch-fabric", 1.0, _ids(bad), "the NVSwitch fabric is not up", listing(bad),
                "start nvidia-fabricmanager, of the driver's own version, and look into its log")
    ]  # fmt: skip


def throttling(topology: Topology) -> list[Finding]:
    """Clocks that the driver or the board holds down now."""
    slow = [
        (g.id, tuple(map(str, reasons)))
        for g in topology.gpus
        if at_work(g) and isinstance(reasons := g.get("throttle"), tuple)
    ]
    slow = [(id, reasons) for id, reasons in slow if reasons]
    found = []
    for hard in (True, False):
        rows = [(id, ", ".join(r)) for id, r in slow if any(word in _HARD for word in r) is hard]
        if rows:
            remedy = (
                "look at cooling and power supply: the board itself asks for lower clocks"
                if hard
                else "raise the power limit (nvidia-smi -pl) or cool better, if the rating allows"
            )
            found.append(
                Finding("throttled-by-board" if hard else "throttled", 0.5 if hard else 0.1, _ids(rows),
                        "GPUs run below their clocks", listing(rows), remedy)
            )  # fmt: skip
    return found


def clocks(topology: Topology) -> list[Finding]:
    """Like GPUs with unlike clocks: a collective is as fast as the slowest of its ranks."""
    found = []
    for group in likes(topology):
        for what in ("memory", "sm"):
            finding = _clock(group, what)
            if finding:
                found.append(finding)
    return found


def _clock(group: list[Device], what: str) -> Finding | None:
    names = [f"clock_{what}_app_hz", f"clock_{what}_max_hz"]
    if all(at_work(gpu) and gpu.get("pstate") == group[0].get("pstate") for gpu in group):
        # Clocks of the moment compare only between GPUs that are at work in the same state.
        names.append(f"clock_{what}_hz")
    for name in names:
        said = [(gpu.id, number) for gpu in group if (number := gpu.number(name))]
        if len(said) < 2:
            continue
        low, high = min(n for _, n in said), max(n for _, n in said)
        if low >= high * (1 - _SAME):
            continue
        lag = 1 - low / high
        which = {"app": "application clock", "max": "highest clock"}.get(
            name.split("_")[2], "clock now"
        )
        slow = tuple(id for id, number in said if number < high * (1 - _SAME))
        return Finding(
            f"{what}-clock-differs",
            # A clock's share of the time is paid by every rank, as all wait for the slowest; the field
            # report saw up to three times the clock's lag in training throughput.
            min(1.0, (3 if what == "memory" else 1) * lag),
            slow,
            f"{'memory' if what == 'memory' else 'SM'} clocks differ by {lag:.1%} among like GPUs "
            f"({group[0].get('model') or group[0].name})"
            + (f"; training may lose up to {3 * lag:.0%}" if what == "memory" else ""),
            f"{which}: " + listing((id, f"{number / 1e9:.4f} GHz") for id, number in said),
            "set the same clocks on all (nvidia-smi -ac or -lmc/-lgc), look for another VBIOS or board "
            "revision, or leave the slow ones out of jobs that use the others",
        )
    return None


def power_limits(topology: Topology) -> list[Finding]:
    """A limit below the one the board was shipped with, or other than its peers'."""
    low = [
        (g.id, f"{limit:.0f} of {default:.0f} W")
        for g in topology.gpus
        if (limit := g.number("power_limit_w"))
        and (default := g.number("power_default_w"))
        and limit < default * 0.99
    ]
    if not low:
        return []
    return [
        Finding("power-limit-lowered", 0.05, _ids(low), "power limits below the default", listing(low),
                "nvidia-smi -pl, unless the limit is meant")
    ]  # fmt: skip


def models(topology: Topology) -> list[Finding]:
    """GPUs of several models in one machine: each collective runs at the slowest one's pace."""
    groups = likes(topology)
    if len(groups) < 2:
        return []
    rows = [(gpu.id, str(gpu.get("model") or gpu.name)) for group in groups for gpu in group]
    most = max(groups, key=len)
    return [
        Finding("mixed-models", 0.04, tuple(id for id, _ in rows if id not in {g.id for g in most}),
                f"{len(groups)} GPU models in one machine", listing(rows), "keep a job within one model")
    ]  # fmt: skip


def _ids(rows: list[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(id for id, _ in rows))


GPU_RULES = (memory_errors, ecc_mode, fabric, throttling, clocks, power_limits, models)
