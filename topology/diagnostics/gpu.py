"""Findings about single GPUs: clocks, throttling, power, memory errors, models, fabric."""

from __future__ import annotations

from busbar.units import format_frequency
from topology.diagnostics.finding import Finding, at_work, grouped, likes, listing
from topology.model.topology import Device, Topology

#: Clocks closer than this are the same: drivers round to steps.
_SAME = 0.01
_HARD = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


def memory_errors(topology: Topology) -> list[Finding]:
    """Uncorrected errors end jobs; failed row remapping means that the card must be replaced."""
    gpus = topology.gpus
    counted = {name: _counted(gpus, f"ecc_{name}") for name in ("uncorrected", "corrected")}
    failed = [(gpu.id, "row remapping failed") for gpu in gpus if gpu.get("rows_failed") is True]
    waiting = [(gpu.id, "reset pending") for gpu in gpus if gpu.get("rows_pending") is True]
    return [
        *grouped(
            "ecc-uncorrected",
            1.0,
            [*counted["uncorrected"], *failed],
            "memory errors that ECC could not correct",
            "drain the node, reset the GPU, and replace it if errors return",
        ),
        *grouped(
            "ecc-rows-pending",
            0.3,
            waiting,
            "bad memory rows wait to be replaced by spare ones",
            "reset the GPU (nvidia-smi -r) or reboot",
        ),
        *grouped(
            "ecc-corrected",
            0.02,
            counted["corrected"],
            "ECC corrects memory errors",
            "watch the count; a rising one announces a failing card",
        ),
    ]


def _counted(gpus: tuple[Device, ...], name: str) -> list[tuple[str, str]]:
    word = name.removeprefix("ecc_")
    return [(gpu.id, f"{n:.0f} {word}") for gpu in gpus if (n := gpu.number(name) or 0) > 0]


def ecc_mode(topology: Topology) -> list[Finding]:
    """Like GPUs with and without ECC differ in memory size and bandwidth."""
    found = []
    for group in likes(topology):
        known = [gpu for gpu in group if gpu.get("ecc") is not None]
        modes = [(gpu.id, "ECC on" if gpu.get("ecc") else "ECC off") for gpu in known]
        if len({mode for _, mode in modes}) > 1:
            remedy = "set the same on all: nvidia-smi -e 1, then reset"
            found += grouped(
                "ecc-mode-differs", 0.06, modes, "like GPUs differ in their ECC mode", remedy
            )
    return found


def fabric(topology: Topology) -> list[Finding]:
    """An NVSwitch machine without its fabric has no NVLink at all, and CUDA does not start."""
    bad = []
    for gpu in topology.gpus:
        state = str(gpu.get("fabric_state") or "")
        status = str(gpu.get("fabric_status") or "success")
        if state in ("not started", "in progress"):
            bad.append((gpu.id, f"fabric {state}"))
        elif state == "completed" and status != "success":
            bad.append((gpu.id, f"fabric registration: {status}"))
    remedy = "start nvidia-fabricmanager, of the driver's own version, and look into its log"
    up = {gpu.id for gpu in topology.gpus} - {id for id, _ in bad}
    ill = [(gpu.id, state) for gpu in topology.gpus if gpu.id in up and (state := _illness(gpu))]
    return [
        *grouped("nvswitch-fabric", 1.0, bad, "the NVSwitch fabric is not up", remedy),
        *grouped(
            "nvswitch-fabric-health",
            0.6,
            ill,
            "the NVSwitch fabric is not healthy",
            "drain the node and reset its GPUs; if it stays, look into the logs of "
            "nvidia-fabricmanager and of the switches (NVLSM, nvidia-smi -q, Fabric) for the cause",
        ),
    ]


def _illness(gpu: Device) -> str:
    """What a GPU states of the health of its fabric, "" where nothing is wrong."""
    problems = gpu.get("fabric_problems")
    words = [str(word) for word in problems] if isinstance(problems, tuple) else []
    summary = str(gpu.get("fabric_health") or "healthy")
    return ", ".join([*([] if summary == "healthy" else [summary]), *words])


def throttling(topology: Topology) -> list[Finding]:
    """Clocks that the driver or the board holds down now."""
    board: list[tuple[str, str]] = []
    driver: list[tuple[str, str]] = []
    for gpu in topology.gpus:
        reasons = gpu.get("throttle")
        if isinstance(reasons, tuple) and reasons and at_work(gpu):
            hard = any(word in _HARD for word in reasons)
            (board if hard else driver).append((gpu.id, ", ".join(map(str, reasons))))
    return [
        *grouped(
            "throttled-by-board",
            0.5,
            board,
            "the board holds clocks down",
            "look at cooling and power supply: the board itself asks for lower clocks",
        ),
        *grouped(
            "throttled",
            0.1,
            driver,
            "the driver holds clocks down",
            "raise the power limit (nvidia-smi -pl) or cool better, if the rating allows",
        ),
    ]


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
            # A clock's share of the time is paid by every rank, as all wait for the slowest; the
            # field report saw up to three times the clock's lag in training throughput.
            min(1.0, (3 if what == "memory" else 1) * lag),
            slow,
            f"{'memory' if what == 'memory' else 'SM'} clocks differ by {lag:.1%} among like GPUs "
            f"({group[0].get('model') or group[0].name})"
            + (f"; training may lose up to {3 * lag:.0%}" if what == "memory" else ""),
            f"{which}: " + listing((id, format_frequency(number, ".4f")) for id, number in said),
            "set the same clocks on all (nvidia-smi -ac or -lmc/-lgc), look for another VBIOS "
            "or board revision, or leave the slow ones out of jobs that use the others",
        )
    return None


def power_limits(topology: Topology) -> list[Finding]:
    """A limit below the one that the board was shipped with."""
    low = []
    for gpu in topology.gpus:
        limit, default = gpu.number("power_limit_w"), gpu.number("power_default_w")
        if limit and default and limit < default * (1 - _SAME):
            low.append((gpu.id, f"{limit:.0f} of {default:.0f} W"))
    remedy = "nvidia-smi -pl, unless the limit is meant"
    return grouped("power-limit-lowered", 0.05, low, "power limits below the default", remedy)


def models(topology: Topology) -> list[Finding]:
    """GPUs of several models in one machine: each collective runs at the slowest one's pace."""
    groups = likes(topology)
    if len(groups) < 2:
        return []
    rows = [(gpu.id, str(gpu.get("model") or gpu.name)) for group in groups for gpu in group]
    most = max(groups, key=len)
    others = [gpu.id for group in groups for gpu in group if group is not most]
    summary = f"{len(groups)} GPU models in one machine"
    return grouped("mixed-models", 0.04, rows, summary, "keep a job within one model", others)


GPU_RULES = (memory_errors, ecc_mode, fabric, throttling, clocks, power_limits, models)
