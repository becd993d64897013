"""The findings of ``check``: causes of lost performance, each with evidence and a remedy.

A rule is a function from a topology to findings. A rule without its facts has no findings.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from busbar.counters import MUCH, taken
from busbar.errors import Unsupported
from busbar.files import read_text
from busbar.units import format_count, format_frequency
from topology.model.rates import pcie, published
from topology.model.topology import ALIKE_FACTS, Device, Kind, Level, LinkKind, Topology

Key = tuple[str, tuple[str, ...], str]
"""Code, subjects and evidence of a finding."""
_MOST_BYTES = 1 << 24


@dataclass(frozen=True)
class Finding:
    """One cause of lost performance. ``harm``: roughly the share that is lost, 0 to 1 (1: broken).

    ``code``: the kind of cause as a word that does not change, for scripts. ``subjects``: device
    ids, or pairs as ``GPU0-GPU1``.
    """

    code: str
    harm: float
    subjects: tuple[str, ...]
    summary: str
    evidence: str
    remedy: str

    @property
    def key(self) -> Key:
        """Code, subjects and evidence; equal in two findings if nothing has changed."""
        return self.code, self.subjects, self.evidence


def read_baseline(path: Path) -> list[Key]:
    """The keys of the findings that ``check --json`` wrote to a file. Raises Unsupported."""
    try:
        return [
            (str(one["code"]), tuple(map(str, one["subjects"])), str(one["evidence"]))
            for one in json.loads(read_text(path, _MOST_BYTES))
        ]
    except (ValueError, TypeError, KeyError, RecursionError):
        wanted = "write it with busbar topology check --json"
        raise Unsupported(f"{path}: no file of findings; {wanted}") from None


def likes(topology: Topology) -> list[list[Device]]:
    """The GPUs in groups of one model each; GPUs of unknown model are left out."""
    models: dict[str, list[Device]] = {}
    for gpu in topology.gpus:
        model = gpu.get("model") or gpu.name
        if model:
            models.setdefault(str(model), []).append(gpu)
    return list(models.values())


def at_work(gpu: Device) -> bool:
    """True if the GPU is known to be busy. Idle GPUs lower clocks and PCIe generation on purpose.

    Both the performance state (busy: P0 … P2) and the reported reason "idle" must allow it, if
    known: an idle desktop card in P8 may report a power cap as the reason.
    """
    pstate, idle = gpu.get("pstate"), gpu.get("idle")
    return (
        idle is not True and pstate in ("P0", "P1", "P2", None) and (idle, pstate) != (None, None)
    )


def listing(values: Iterable[tuple[str, str]]) -> str:
    """(device, value) pairs as text by value: ``1.683 GHz: GPU1, GPU4; 1.771 GHz: GPU0``."""
    groups: dict[str, list[str]] = {}
    for device, value in values:
        groups.setdefault(value, []).append(device)
    return "; ".join(f"{value}: {', '.join(groups[value])}" for value in sorted(groups))


def grouped(
    code: str,
    harm: float,
    rows: Sequence[tuple[str, str]],
    summary: str,
    remedy: str,
    subjects: Iterable[str] | None = None,
) -> list[Finding]:
    """A list of one finding from (subject, statement) rows; an empty list without subjects.

    ``subjects``: those that the finding is about; by default the subjects of all rows.
    """
    about = tuple(dict.fromkeys((one for one, _ in rows) if subjects is None else subjects))
    return [Finding(code, harm, about, summary, listing(rows), remedy)] if about else []


#: Clocks that differ by less than this share count as equal: drivers round to steps.
_SAME = 0.01
_HARD = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


def memory_errors(topology: Topology) -> list[Finding]:
    """Find memory errors. Uncorrected ones end jobs; if row remapping failed, replace the card."""
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
    """Find GPUs of one model with different ECC modes: memory size and bandwidth then differ."""
    findings = []
    for group in likes(topology):
        known = [gpu for gpu in group if gpu.get("ecc") is not None]
        modes = [(gpu.id, "ECC on" if gpu.get("ecc") else "ECC off") for gpu in known]
        if len({mode for _, mode in modes}) > 1:
            remedy = "set the same on all: nvidia-smi -e 1, then reset"
            findings += grouped(
                "ecc-mode-differs", 0.06, modes, "like GPUs differ in their ECC mode", remedy
            )
    return findings


def fabric(topology: Topology) -> list[Finding]:
    """Find an NVSwitch fabric that is down (NVLink and CUDA then do not work) or not healthy."""
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
    """The problems of its NVLink fabric that a GPU reports; empty if the fabric is healthy."""
    problems = gpu.get("fabric_problems")
    words = [str(word) for word in problems] if isinstance(problems, tuple) else []
    summary = str(gpu.get("fabric_health") or "healthy")
    return ", ".join([*([] if summary == "healthy" else [summary]), *words])


def throttling(topology: Topology) -> list[Finding]:
    """Find clocks that the driver or the board limits now."""
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
    """Find GPUs of one model with different clocks: the slowest rank limits a collective."""
    findings = []
    for group in likes(topology):
        for what in ("memory", "sm"):
            finding = _clock(group, what)
            if finding:
                findings.append(finding)
    return findings


def _clock(group: list[Device], what: str) -> Finding | None:
    names = [f"clock_{what}_app_hz", f"clock_{what}_max_hz"]
    if all(at_work(gpu) and gpu.get("pstate") == group[0].get("pstate") for gpu in group):
        # Present clocks can be compared only between busy GPUs in the same performance state.
        names.append(f"clock_{what}_hz")
    for name in names:
        values = [(gpu.id, number) for gpu in group if (number := gpu.number(name))]
        if len(values) < 2:
            continue
        low, high = min(n for _, n in values), max(n for _, n in values)
        if low >= high * (1 - _SAME):
            continue
        lag = 1 - low / high
        which = {"app": "application clock", "max": "highest clock"}.get(
            name.split("_")[2], "clock now"
        )
        slow = tuple(id for id, number in values if number < high * (1 - _SAME))
        return Finding(
            f"{what}-clock-differs",
            # All ranks wait for the slowest. In a field report memory clocks that were lower by a
            # share cost up to three times that share of training throughput.
            min(1.0, (3 if what == "memory" else 1) * lag),
            slow,
            f"{'memory' if what == 'memory' else 'SM'} clocks differ by {lag:.1%} among like GPUs "
            f"({group[0].get('model') or group[0].name})"
            + (f"; training may lose up to {3 * lag:.0%}" if what == "memory" else ""),
            f"{which}: " + listing((id, format_frequency(number, ".4f")) for id, number in values),
            "set the same clocks on all (nvidia-smi -ac or -lmc/-lgc), look for another VBIOS "
            "or board revision, or leave the slow ones out of jobs that use the others",
        )
    return None


def power_limits(topology: Topology) -> list[Finding]:
    """Find power limits below the board's default."""
    low = []
    for gpu in topology.gpus:
        limit, default = gpu.number("power_limit_w"), gpu.number("power_default_w")
        if limit and default and limit < default * (1 - _SAME):
            low.append((gpu.id, f"{limit:.0f} of {default:.0f} W"))
    remedy = "nvidia-smi -pl, unless the limit is meant"
    return grouped("power-limit-lowered", 0.05, low, "power limits below the default", remedy)


def models(topology: Topology) -> list[Finding]:
    """Find GPUs of several models in one machine: the slowest model limits a collective."""
    groups = likes(topology)
    if len(groups) < 2:
        return []
    rows = [(gpu.id, str(gpu.get("model") or gpu.name)) for group in groups for gpu in group]
    most = max(groups, key=len)
    others = [gpu.id for group in groups for gpu in group if group is not most]
    summary = f"{len(groups)} GPU models in one machine"
    return grouped("mixed-models", 0.04, rows, summary, "keep a job within one model", others)


GPU_RULES = (memory_errors, ecc_mode, fabric, throttling, clocks, power_limits, models)


#: The least rate of a network port that jobs use, in bytes per second: 10 Gbit/s.
_LEAST_FABRIC = 1.25e9


def pcie_width(topology: Topology) -> list[Finding]:
    """Find PCIe links with fewer lanes than the device supports: reseat or move the card.

    Virtual machines are left out: the user cannot move cards there.
    """
    lost: list[tuple[str, str]] = []
    narrow: list[tuple[str, str]] = []
    share = 0.0
    for device in _pcie_devices(topology):
        width, most = device.number("pcie_width"), device.number("pcie_width_max")
        port = device.number("port_width_max")
        if not width or not most or width >= most:
            continue
        share = max(share, 1 - width / most)
        text = f"x{width:.0f} of x{most:.0f}"
        if port and width >= port:
            narrow.append((device.id, f"{text}, the port {device.get('port_busid')} has no more"))
        else:
            lost.append((device.id, text))
    reseat = "reseat the card or riser, look for a slot that shares lanes, then for a bent pin"
    move = "move the card to a slot with all of its lanes"
    return [
        *grouped("pcie-width", share, lost, "PCIe links trained below their width", reseat),
        *grouped("pcie-slot-width", share, narrow, "slots narrower than their cards", move),
    ]


def pcie_generation(topology: Topology) -> list[Finding]:
    """Find PCIe links below the generation that device and port support; idle GPUs are left out."""
    rows: list[tuple[str, str]] = []
    share = 0.0
    for device in _pcie_devices(topology):
        gen, most = device.number("pcie_gen"), device.number("pcie_gen_max")
        port = device.number("port_gen_max")
        if not gen or not most or (device.kind is Kind.GPU and not at_work(device)):
            continue
        most = min(most, port) if port else most
        if gen < most:
            rows.append((device.id, f"gen{gen:.0f} of gen{most:.0f}"))
            share = max(share, 1 - pcie(int(gen), 1) / pcie(int(most), 1))
    remedy = "set the slot's link speed in the BIOS, reseat the card, try without the riser"
    summary = "PCIe links trained below their generation"
    return grouped("pcie-generation", share, rows, summary, remedy)


def pcie_unlike(topology: Topology) -> list[Finding]:
    """Find GPUs of one model whose fastest possible PCIe link differs: one is in a slower slot."""
    findings = list[Finding]()
    for group in likes(topology):
        rates = {
            gpu: pcie(int(gen), int(width))
            for gpu in group
            if (gen := gpu.number("pcie_gen_max")) and (width := gpu.number("pcie_width_max"))
        }
        best, worst = max(rates.values(), default=0.0), min(rates.values(), default=0.0)
        if worst == best:
            continue
        values = [(g.id, f"gen{g.get('pcie_gen_max')} x{g.get('pcie_width_max')}") for g in rates]
        less = [gpu.id for gpu, rate in rates.items() if rate < best]
        summary, remedy = "like GPUs in unlike slots", "move the GPU to a slot like the others'"
        findings += grouped("pcie-slots-differ", 1 - worst / best, values, summary, remedy, less)
    return findings


def nvlinks_missing(topology: Topology) -> list[Finding]:
    """Find GPUs without any active NVLink whose model always has NVLinks; MIG is left out."""
    rows = [
        (gpu.id, f"0 NVLinks up, {known.nvlinks} are published for {gpu.get('model') or gpu.name}")
        for gpu in topology.gpus
        if (known := published(gpu.get("model") or gpu.name)) and known.nvlinks
        if gpu.get("nvlinks") == 0 and gpu.get("mig") is not True
    ]
    remedy = (
        "look into nvidia-fabricmanager's log and reset the GPUs; have the baseboard checked. A"
        " virtual machine that was given one GPU of a board has no NVLinks by design"
    )
    return grouped("nvlinks-missing", 0.9, rows, "no NVLink is up on boards that have them", remedy)


def nvlinks(topology: Topology) -> list[Finding]:
    """Find NVLinks that are down, have errors, or are fewer or slower than on GPUs of one model."""
    findings = []
    for group in likes(topology) or [list(topology.gpus)]:
        findings += [*_nvlink_counts(topology, group), *_nvlink_rates(group)]
    wrong = [(g.id, f"{n:.0f} errors") for g in topology.gpus if (n := g.number("nvlink_errors"))]
    remedy = "clear the counters, run a load, read again; links whose count rises are failing"
    return findings + grouped(
        "nvlink-errors", 0.05, wrong, "NVLinks had to repeat or recover", remedy
    )


def _nvlink_counts(topology: Topology, group: list[Device]) -> list[Finding]:
    wired = _wired(topology)
    known = {gpu: n for gpu in group if (n := _links(gpu, wired.get(gpu.id, []))) is not None}
    # NCCL's XML leaves out links that are down, so compare with GPUs of the same architecture.
    kinds = {gpu.get("sm") for gpu, n in known.items() if n} - {None}
    bare = [gpu for gpu in group if gpu not in known and not wired.get(gpu.id)]
    # A matrix states for each pair whether it has NVLinks.
    apart = [
        gpu
        for gpu in bare
        if known and all(topology.pair(gpu.id, other.id, "nvlinks") == 0 for other in known)
    ]
    known |= {gpu: 0 for gpu in bare if gpu.get("sm") in kinds or gpu in apart}
    # A GPU whose links are all down has no bridge. This is a fault only if others have one.
    down = {
        gpu: d for gpu in known if isinstance(d := gpu.get("nvlinks_down"), tuple) and known[gpu]
    }
    full = max((n + len(down.get(gpu, ())) for gpu, n in known.items()), default=0)
    most = max(known.values(), default=0)
    hurt = {gpu: n for gpu, n in known.items() if n < most or gpu in down}
    if not hurt:
        return []
    evidence = listing((gpu.id, f"{n} NVLinks up") for gpu, n in known.items())
    for gpu, numbers in down.items():
        evidence += f"; {gpu.id}: link {', '.join(map(str, numbers))} down"
    if apart and not likes(topology):
        evidence += "; no source names the models, and a model without NVLink has none by design"
    return [
        Finding(
            "nvlink-down",
            1 - min(hurt.values()) / full,
            tuple(gpu.id for gpu in hurt),
            "NVLinks are down, or fewer than on like GPUs",
            evidence,
            "reset the GPUs; on NVSwitch machines look into nvidia-fabricmanager's log; reseat the "
            "NVLink bridge; have the baseboard checked",
        )
    ]


def _nvlink_rates(group: list[Device]) -> list[Finding]:
    rates = {gpu.id: rate for gpu in group if (rate := gpu.number("nvlink_rate"))}
    top = max(rates.values(), default=0.0)
    slow = [id for id, rate in rates.items() if rate < top * 0.99]
    values = [(id, f"{rate / 1e9:g} GB/s") for id, rate in rates.items()]
    summary, remedy = "NVLinks slower than on like GPUs", "reset the GPUs, then the machine"
    harm = 1 - min(rates.values(), default=0.0) / (top or 1)
    return grouped("nvlink-slow", harm, values, summary, remedy, slow)


def _wired(topology: Topology) -> dict[str, list[tuple[str, int]]]:
    """For each device the devices that its NVLinks lead to, with the number of links to each."""
    counts: dict[str, list[tuple[str, int]]] = {}
    for link in topology.graph.topology.links:
        if link.kind is LinkKind.NVLINK:
            counts.setdefault(link.a, []).append((link.b, link.count))
            counts.setdefault(link.b, []).append((link.a, link.count))
    return counts


def _links(gpu: Device, wired: list[tuple[str, int]]) -> int | None:
    """The number of a GPU's NVLinks, as stated or by its links to switches; None if unknown."""
    stated = gpu.whole("nvlinks")
    if stated is not None:
        return stated
    # Direct links may lead to GPUs that are not visible here, so only links to switches count.
    switched = any(end.startswith("NVS") for end, _ in wired)
    return sum(count for _, count in wired) if switched else None


def redirected(topology: Topology) -> list[Finding]:
    """Find ACS and IOMMU translation, which send traffic of neighbours via the root complex."""
    acs: list[tuple[str, str]] = []
    translated: list[tuple[str, str]] = []
    for gpu in topology.gpus:
        path = [gpu, *topology.ancestors(gpu.id)]
        ports = [str(d.get("port_busid")) for d in path if d.get("port_acs") is True]
        if ports:
            acs.append((gpu.id, f"ACS redirects at {', '.join(ports)}"))
        if str(gpu.get("iommu") or "").startswith("DMA"):
            translated.append((gpu.id, f"IOMMU domain {gpu.get('iommu')}"))
    return [
        *grouped(
            "acs",
            0.5,
            acs,
            "PCIe ACS sends P2P through the root complex",
            "turn ACS off in the BIOS, or clear its control bits with setpci after each boot",
        ),
        *grouped(
            "iommu",
            0.4,
            translated,
            "the IOMMU translates, which slows or forbids P2P",
            "boot with iommu=pt (intel_iommu=on iommu=pt), or off",
        ),
    ]


def far_from_nic(topology: Topology) -> list[Finding]:
    """Find GPUs whose nearest NIC is beyond the CPU while other GPUs have a nearer NIC."""
    nics = [nic.id for nic in _fabric_nics(topology)]
    if flat(topology):
        return []  # distances are unknown
    nearest: dict[str, tuple[Level, str]] = {}
    for gpu in topology.gpus:
        levels = [
            (level, nic)
            for nic in nics
            if (level := topology.relation(gpu.id, nic).level) is not None
        ]
        if levels:
            nearest[gpu.id] = min(levels)
    if not nearest:
        return []
    near = max(min(nearest.values())[0], Level.PXB)
    far = [id for id, (level, _) in nearest.items() if level is Level.SYS or level > near]
    harm = 0.4 if any(nearest[id][0] is Level.SYS for id in far) else 0.2
    values = [(id, f"{level.name} to {nic}") for id, (level, nic) in nearest.items()]
    remedy = (
        "keep communication between nodes on the GPUs near a NIC, or move a NIC to their switch or"
        " socket"
    )
    return grouped("far-from-nic", harm, values, "GPUs far from every NIC", remedy, far)


def flat(topology: Topology) -> list[Finding]:
    """Find a hidden PCIe tree, as of virtual machines: all pairs are SYS, but share NUMA nodes."""
    gpus = topology.gpus
    homes = {gpu.get("numa_affinity") for gpu in gpus}
    if len(gpus) < 2 or len(homes) >= len(gpus) or None in homes:
        return []
    relations = (topology.relation(a.id, b.id) for a, b in combinations(gpus, 2))
    if any(r.level is not Level.SYS or r.nvlinks for r in relations):
        return []
    pairs = len(gpus) * (len(gpus) - 1) // 2
    return [
        Finding("hidden-tree", 0.3, tuple(gpu.id for gpu in gpus),
        "every pair is SYS, though GPUs share NUMA nodes",
                f"{format_count(pairs, 'pair')} SYS with NUMA affinity"
                f" {', '.join(sorted(map(str, homes)))}: "
                "a virtual machine without the PCIe tree, or firmware that places no slots",
                "virtual machine: give NCCL the provider's topology (NCCL_TOPO_FILE) or pass the "
                "tree through; else look for NUMA settings in the BIOS (ACPI SRAT, NPS)")
    ]  # fmt: skip


def _fabric_nics(topology: Topology) -> list[Device]:
    """NICs with RDMA; if none is known, all NICs but virtual ones and management ports."""
    rdma = [n for n in topology.nics if _is_rdma(n)]
    real = [n for n in topology.nics if n.busid or not n.get("net_names")]
    return rdma or [n for n in real if not _for_management(n)]


def _for_management(nic: Device) -> bool:
    """True for a port that jobs do not use: slower than 10 Gbit/s, or named as for management."""
    rates = (nic.number("net_rate"), nic.number("pcie_rate"))
    slow = any(rate is not None and 0 < rate < _LEAST_FABRIC for rate in rates)
    return slow or nic.net_name.startswith(("usb", "enx", "bmc", "idrac", "ipmi"))


def _is_rdma(nic: Device) -> bool:
    families = ("mlx", "ib", "rdma", "roce", "hfi", "efa", "irdma", "bnxt_re")
    return any(name.startswith(families) for name in nic.net_names)


def _pcie_devices(topology: Topology) -> list[Device]:
    """GPUs, NICs that jobs use, and the bridges above both.

    Devices of a virtual machine are left out, since the user cannot change their links.
    """
    ends = [d for d in (*topology.gpus, *_fabric_nics(topology)) if not _virtual(topology, d)]
    above = {one.id: one for end in ends for one in topology.ancestors(end.id)}
    return [*ends, *(one for one in above.values() if one.kind is Kind.BRIDGE)]


def _virtual(topology: Topology, device: Device) -> bool:
    guest = str(device.get("virtualization") or "").lower() in ("pass-through", "vgpu")
    return guest or topology.get("hypervisor") is True


LINK_RULES = (
    pcie_width,
    pcie_generation,
    pcie_unlike,
    nvlinks,
    nvlinks_missing,
    redirected,
    far_from_nic,
    flat,
)


_P2P_WORDS = {
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "DR": "disabled by registry key",
    "NS": "not supported",
}
_ALLOW = (
    "GeForce drivers refuse it by design; else turn ACS and IOMMU translation off, look at the BIOS"
    " (above 4G decoding, resizable BAR), and at the virtual machine's settings"
)
_WAY = "No source says what connects them: add nvidia-smi topo -m"
_MOST_PAIRS = 12
#: A rate below this share of the expected rate is a finding: protocol or size do not explain it.
_SHARE = 0.5
#: The share of the rate without P2P, because data then passes PCIe twice, via the host's memory.
_STAGED = 0.5
_UNLIKE = 0.75


def p2p(topology: Topology) -> list[Finding]:
    """Find GPU pairs for which the driver refuses P2P, but whose path allows it or is unknown."""
    rows: list[tuple[str, str]] = []
    unknown: list[tuple[str, str]] = []
    for a, b in topology.stated(topology.gpus, "p2p_read", "p2p_access"):
        relation = topology.relation(a, b)
        near = relation.level is not None and Level.LOC < relation.level <= Level.PHB
        if not (relation.nvlinks or near or relation.level is None):
            continue
        group = unknown if relation.level is None and not relation.nvlinks else rows
        words = {topology.pair(x, y, "p2p_read") for x, y in ((a, b), (b, a))}
        refused = sorted(str(word) for word in words if word in _P2P_WORDS)
        if refused:
            group.append((f"{a}-{b}", f"{_P2P_WORDS[refused[0]]} ({refused[0]})"))
        elif any(topology.pair(x, y, "p2p_access") is False for x, y in ((a, b), (b, a))):
            group.append((f"{a}-{b}", "no peer access for CUDA"))
    return [
        *_pairs("p2p-refused", 0.5, rows, "no P2P where the path would allow it", _ALLOW),
        *_pairs("p2p-unavailable", 0.3, unknown, "no P2P between GPUs", f"{_ALLOW}. {_WAY}"),
    ]


def _pairs(
    code: str, harm: float, rows: list[tuple[str, str]], summary: str, remedy: str
) -> list[Finding]:
    """A finding about pairs. If there are many pairs, it names the GPUs and counts the pairs."""
    findings = grouped(code, harm, rows, summary, remedy)
    if len(rows) <= _MOST_PAIRS:
        return findings
    words = Counter(what for _, what in rows)
    evidence = "; ".join(
        f"{what}: {n} pairs, as {next(pair for pair, state in rows if state == what)}"
        for what, n in words.items()
    )
    gpus = tuple(dict.fromkeys(id for pair, _ in rows for id in pair.split("-", 1)))
    return [replace(one, subjects=gpus, evidence=evidence) for one in findings]


class _Short(NamedTuple):
    """A measured rate that is too low. ``guess``: a note if the promised rate is assumed."""

    link: str
    subject: str
    rate: float
    promised: float
    guess: str


def measured(topology: Topology) -> list[Finding]:
    """Find measured rates of less than half of the expected rate.

    The expected rate follows from the links that sources state, else from what is published about
    the GPU's model (`topology.model.rates`).
    """
    findings = [*_slow_pairs(topology), *_slow_copies(topology)]
    if not findings:
        return []
    worst = min(findings, key=lambda one: one.rate / one.promised)
    links = {one.link: [o for o in findings if o.link == one.link] for one in findings}
    evidence = "; ".join(
        f"{link}: {_span(o.rate for o in ones)} measured in {format_count(len(ones), 'direction')},"
        f" {_span(o.promised for o in ones)} expected{ones[0].guess}"
        for link, ones in links.items()
    )
    subjects = tuple(dict.fromkeys(one.subject for one in findings))
    if len(subjects) > _MOST_PAIRS:
        subjects = tuple(dict.fromkeys(id for one in subjects for id in one.split("-", 1)))
    return [
        Finding(
            "slow-link",
            1 - worst.rate / worst.promised,
            subjects,
            "links carry less than half of what their class gives",
            evidence,
            "measure again with nothing else running; look at the link's generation and width under"
            " load (nvidia-smi -q -d PCIE), at risers and splitters, at ACS and IOMMU translation",
        )
    ]


def _slow_pairs(topology: Topology) -> Iterator[_Short]:
    from topology.model.measured import expected, matrix  # with numpy, which a map does not need

    for (a, b), cell in matrix(topology, "bandwidth").items():
        ends = (topology.device(a), topology.device(b))
        promised = expected(topology, a, b)
        if a == b or promised is None or not all(end.kind is Kind.GPU for end in ends):
            continue
        guess = " (assumed)" * any(
            hop.assumed for hop in topology.route(a, b) if hop.bandwidth == promised
        )
        promised *= 1 if topology.peers(a, b) else _STAGED
        if cell.value < _SHARE * promised:
            yield _Short(_class(topology, a, b), f"{a}-{b}", cell.value, promised, guess)


def _slow_copies(topology: Topology) -> Iterator[_Short]:
    """Slow copies between host and device, compared with the slowest link on their way."""
    for gpu in topology.gpus:
        way = [hop.bandwidth for hop in topology.graph.climb(gpu.id) if hop.kind != "memory"]
        for name, words in (("host_to_device", "from"), ("device_to_host", "to")):
            rate = gpu.number(name)
            if rate and way and rate < _SHARE * min(way):
                yield _Short(f"{words} the host", gpu.id, rate, min(way), "")


def _class(topology: Topology, a: str, b: str) -> str:
    text = topology.relation(a, b).text
    return "GPU to GPU" if text in ("?", "") else text


def _span(rates: Iterator[float]) -> str:
    ends = sorted(rates)
    low, high = (f"{end / 1e9:.3g}" for end in (ends[0], ends[-1]))
    return f"{low} GB/s" if low == high else f"{low} to {high} GB/s"


def unlike(topology: Topology) -> list[Finding]:
    """Find pairs of GPUs with less than 3/4 of the rate of the other pairs of their class.

    Where no source says what connects pairs, they may be of several classes; this is said.
    """
    from topology.model.measured import Slow, matrix, slow

    cells = matrix(topology, "bandwidth")
    gpus = {gpu.id for gpu in topology.gpus}
    between = {pair: cell for pair, cell in cells.items() if {*pair} <= gpus}
    groups: dict[bool, list[Slow]] = {True: [], False: []}
    for pair in slow(topology, between, True):
        if pair.estimate.value < _UNLIKE * pair.typical:
            groups[pair.kind != "?"].append(pair)
    remedy = "look at the two devices' links; measure again with nothing else running"
    findings = []
    for known, pairs in groups.items():
        texts = [
            (
                f"{s.a}-{s.b}",
                f"{s.estimate.value / 1e9:.3g} of {s.typical / 1e9:.3g} GB/s"
                + f" ({s.kind})" * known,
            )
            for s in pairs
        ]
        lost = 1 - min((s.estimate.value / s.typical for s in pairs), default=1.0)
        findings += _pairs(
            "pair-slow",
            lost if known else lost / 2,
            texts,
            f"pairs slower than others{' of their class' if known else ', perhaps by design'}",
            remedy if known else f"{_WAY}. Pairs of one class differ little: {remedy}",
        )
    return findings


def slow_ranks(topology: Topology) -> list[Finding]:
    """Find the ranks, hosts and links whose measured rates are below 3/4 of the others'.

    The decision is that of `topology.model.slow_units`: what explains the slow pairs is named. Of
    three ranks that cannot be told, and the pairs are named.
    """
    from topology.model.slow_units import cannot_tell, matrices, worse

    others = topology.others_share
    beside = f"; {taken(others)} while it was measured" if others >= MUCH else ""
    findings: dict[tuple[str, ...], Finding] = {}
    for pairs in matrices(topology):
        if not pairs.more_is_better or not all(id.startswith("RANK") for id in pairs.ids):
            continue
        slow_units = worse(pairs, 1 / _UNLIKE - 1)
        best = max((cell.value for cell in pairs.compared.values()), default=0.0)
        least = min((pairs.cells[pair].value for pair in pairs.slow), default=best)
        if not slow_units and least < _UNLIKE * best and (why := cannot_tell(pairs)):
            finding = Finding(
                "pair-slow",
                1 - least / best,
                pairs.ids,
                "a rank or a link slower than the others",
                f"{why}; {least / 1e9:.3g} of {best / 1e9:.3g} GB/s{beside}",
                "measure with four ranks or more, or let busbar qualify tell which",
            )
            findings.setdefault(pairs.ids, finding)
        for one in slow_units:
            kind, ends = one.unit.kind, [pairs.ids[end] for end in one.unit.ends]
            subjects = ("-".join(ends),) if kind == "link" else tuple(ends)
            hosts = list(dict.fromkeys(filter(None, (pairs.nodes[e] for e in one.unit.ends))))
            where = f" ({', '.join(hosts)})" if hosts else ""
            way = {"sending": " sends", "receiving": " receives", "within": " inside"}.get(kind, "")
            what = {"link": "a link", "node": "a host", "within": "a host"}.get(kind, "a rank")
            rates = f"{one.value / 1e9:.3g} of {one.typical / 1e9:.3g} GB/s ({one.of_kind})"
            finding = Finding(
                "pair-slow",
                1 - 1 / one.times,
                subjects,
                f"{what}{way} slower than the others of its class",
                f"{rates} in {one.pairs} of {format_count(one.of, 'pair')}{where}{beside}",
                "look at the ports, cables and load of these; measure again with nothing else"
                " running",
            )
            findings.setdefault(subjects, finding)
    return list(findings.values())


def disturbed(topology: Topology) -> list[Finding]:
    """Find that other programs took much of the cores while ranks were measured."""
    if topology.others_share < MUCH:
        return []
    return [
        Finding(
            "measured-disturbed",
            topology.others_share,
            ("machine",),
            "the measured latencies and rates are not to be relied on",
            f"{taken(topology.others_share)} while ranks were measured",
            "measure again while nothing else runs",
        )
    ]


PEER_RULES = (p2p, measured, unlike, slow_ranks, disturbed)


_NVIDIA = "0x10de"
#: Sources that list the GPUs that NVIDIA's driver can use. Others know what is on the bus.
_DRIVER = ("nvml", "nvidia-smi -q", "topo -m", "nvlink")


def driver_down(
    topology: Topology, device_files: Sequence[Path], reasons: Iterable[str]
) -> list[Finding]:
    """Find that NVIDIA's driver does not answer on a machine that has NVIDIA devices.

    ``device_files``: those of the driver in /dev; ``reasons``: of sources that did not answer.
    """
    gpus = [gpu.id for gpu in topology.gpus if gpu.get("vendor") == _NVIDIA]
    if {*_DRIVER} & {*topology.sources} or not (gpus or device_files):
        return []
    seen = (
        f"{format_count(len(gpus), 'NVIDIA GPU')} on the PCI bus"
        if gpus
        else f"{min(device_files)} exists"
    )
    return [
        Finding(
            "driver-down",
            1.0,
            tuple(gpus) or ("machine",),
            "NVIDIA's driver does not answer: no GPU can be used or checked",
            "; ".join([seen, *reasons]),
            "load the driver, or reboot after its update; nvidia-smi should list all GPUs",
        )
    ]


def miscounted(topology: Topology, gpus: int | None, nics: int | None) -> list[Finding]:
    """Find that a machine has not as many GPUs or NICs as it should; None: any number.

    A GPU that has fallen off the bus may still be in sysfs, so the driver's GPUs are counted where
    the driver answers.
    """
    listed = topology.gpus
    if driver := {*_DRIVER[:2]} & {*topology.sources}:
        listed = tuple(gpu for gpu in listed if any(fact.source in driver for fact in gpu.facts))
    findings = []
    for code, what, devices, wanted, fewer in (
        (
            "gpu-count",
            "GPU",
            listed,
            gpus,
            "look for devices that fell off the bus: dmesg (Xid 79), lspci",
        ),
        (
            "nic-count",
            "NIC",
            topology.nics,
            nics,
            "look for the device in lspci, for its driver in dmesg, and at its port of the switch",
        ),
    ):
        if wanted is not None and len(devices) != wanted:
            there = ", ".join(map(_named, devices))
            more = (
                f"if all of these belong to the machine, expect --{what.lower()}s {len(devices)};"
                f" if not, they may be virtual functions, or {what}s of another purpose"
            )
            findings.append(
                Finding(
                    code,
                    1.0,
                    ("machine",),
                    f"{format_count(len(devices), what)} instead of {wanted}",
                    f"found: {there or 'none'}",
                    fewer if len(devices) < wanted else more,
                )
            )
    return findings


def _named(device: Device) -> str:
    """A device by its id, its name if that is another, and its bus id."""
    known = [text for text in (device.name, device.busid) if text and text != device.id]
    return device.id + (f" ({', '.join(known)})" if known else "")


def check(topology: Topology, more: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """Return all findings and ``more``: the greatest harm first, then by code and subjects."""
    rules = (*GPU_RULES, *LINK_RULES, *PEER_RULES, contradictions)
    findings = [*more, *(finding for rule in rules for finding in rule(topology))]
    return tuple(sorted(findings, key=lambda f: (-f.harm, f.code, f.subjects)))


#: Kinds of devices that nodes of one model have alike.
_ALIKE = (Kind.PACKAGE, Kind.NUMA, Kind.SWITCH, Kind.GPU, Kind.NIC)
#: Facts that they have alike besides those of a fingerprint.
_SETTINGS = (
    "driver_version", "vbios", "memory_kb", "clock_memory_max_hz", "clock_sm_max_hz",
    "clock_memory_app_hz", "clock_sm_app_hz", "power_limit_w", "net_rate",
)  # fmt: skip


def differences(topology: Topology, other: Topology) -> list[Finding]:
    """Find what a machine has unlike another of its model: devices, their facts, their links.

    Devices are matched by bus id if both maps have one for each of a kind, else by id. Only facts
    and relations that both maps have are compared, so maps of equal sources show the most.
    """
    missing, more, facts, links = (list[tuple[str, str]]() for _ in range(4))
    partners: dict[str, str] = {}
    for kind in _ALIKE:
        devices = topology.of(kind), other.of(kind)
        if kind not in (Kind.GPU, Kind.NIC) and not all(devices):
            continue  # a source that does not know the kind
        here, there = _matched(*devices)
        missing += [(one.id, one.name or kind.value) for at, one in there.items() if at not in here]
        more += [(one.id, one.name or kind.value) for at, one in here.items() if at not in there]
        for at in here.keys() & there.keys():
            partners[here[at].id] = there[at].id
            facts += _unlike_facts(here[at].id, here[at], there[at])
    facts += _unlike_facts("machine", topology, other)
    ids = [one.id for one in topology.endpoints if one.id in partners]
    cells = topology.matrix(ids), other.matrix([partners[id] for id in ids])
    for (i, a), (j, b) in combinations(enumerate(ids), 2):
        mine, theirs = cells[0][i][j], cells[1][i][j]
        if mine != theirs and "?" not in (mine, theirs):
            links.append((f"{a}-{b}", f"{mine} here, {theirs} there"))
    return [
        *grouped(
            "unlike-missing", 1.0, missing, "devices that the other machine has and this one has"
            " not", "look for them with lspci; reseat or replace what is not on the bus",
        ),
        *grouped(
            "unlike-links", 0.3, sorted(links), "links unlike those of the other machine",
            "look at NVLinks that are down, slots and BIOS settings",
        ),
        *grouped(
            "unlike-facts", 0.1, sorted(facts), "devices unlike those of the other machine",
            "set clocks, power limits and versions alike, or compare machines of one model",
        ),
        *grouped(
            "unlike-more", 0.01, more, "devices that the other machine has not",
            "compare machines of one model",
        ),
    ]  # fmt: skip


def _matched(
    here: Sequence[Device], there: Sequence[Device]
) -> tuple[dict[str, Device], dict[str, Device]]:
    """The devices of both machines by what matches them: bus ids if all have one, else ids."""
    by_bus = all(one.busid for one in (*here, *there))
    one, other = ({(d.busid if by_bus else None) or d.id: d for d in ds} for ds in (here, there))
    return one, other


def _unlike_facts(
    subject: str, mine: Device | Topology, theirs: Device | Topology
) -> Iterator[tuple[str, str]]:
    """(subject, difference) for each fact that both have and that differs."""
    for name in dict.fromkeys((*ALIKE_FACTS, *_SETTINGS)):
        a, b = mine.get(name), theirs.get(name)
        if a is None or b is None or a == b:
            continue
        shown = [
            format_frequency(v) if name.endswith("_hz") and isinstance(v, float) else str(v)
            for v in (a, b)
        ]
        yield subject, f"{name} {shown[0]} here, {shown[1]} there"


def contradictions(topology: Topology) -> list[Finding]:
    """Find sources that contradict each other: one is outdated, or of another machine."""
    conflicts = topology.contradictions()
    if not conflicts:
        return []
    evidence = "; ".join(
        f"{c.subject} {c.name}: "
        + ", ".join(f"{source} says {value}" for source, value in c.values.items())
        for c in conflicts
    )
    return [
        Finding(
            "sources-contradict",
            0.01,
            tuple(dict.fromkeys(c.subject for c in conflicts)),
            f"sources disagree on {format_count(len(conflicts), 'statement')}",
            evidence,
            "read all sources on this machine at one time; a link's speed may be lower while idle",
        )
    ]
