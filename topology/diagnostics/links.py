"""Findings about links: PCIe training, NVLinks, P2P, ACS and IOMMU, the path to the NIC."""

from __future__ import annotations

from itertools import combinations

from topology.diagnostics.finding import Finding, at_work, grouped, likes, listing
from topology.model.published import published
from topology.model.rates import pcie
from topology.model.topology import Device, Kind, Level, LinkKind, Topology

#: Bytes per second of a port that jobs may talk over: 10 Gbit/s.
_LEAST_FABRIC = 1.25e9


def pcie_width(topology: Topology) -> list[Finding]:
    """Lanes below what the device can do: lost until somebody reseats or moves the card.

    In a virtual machine nobody can, and the provider may have given all of a kind so few.
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
        said = f"x{width:.0f} of x{most:.0f}"
        if port and width >= port:
            narrow.append((device.id, f"{said}, the port {device.get('port_busid')} has no more"))
        else:
            lost.append((device.id, said))
    reseat = "reseat the card or riser, look for a slot that shares lanes, then for a bent pin"
    move = "move the card to a slot with all of its lanes"
    return [
        *grouped("pcie-width", share, lost, "PCIe links trained below their width", reseat),
        *grouped("pcie-slot-width", share, narrow, "slots narrower than their cards", move),
    ]


def pcie_generation(topology: Topology) -> list[Finding]:
    """A generation below what device and port agree on, in a device that is not merely idle."""
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
    """Like GPUs whose best PCIe link differs: one sits in a lesser slot."""
    found = list[Finding]()
    for group in likes(topology):
        rates = {
            gpu: pcie(int(gen), int(width))
            for gpu in group
            if (gen := gpu.number("pcie_gen_max")) and (width := gpu.number("pcie_width_max"))
        }
        best, worst = max(rates.values(), default=0.0), min(rates.values(), default=0.0)
        if worst == best:
            continue
        said = [(g.id, f"gen{g.get('pcie_gen_max')} x{g.get('pcie_width_max')}") for g in rates]
        less = [gpu.id for gpu, rate in rates.items() if rate < best]
        summary, remedy = "like GPUs in unlike slots", "move the GPU to a slot like the others'"
        found += grouped("pcie-slots-differ", 1 - worst / best, said, summary, remedy, less)
    return found


def nvlinks_missing(topology: Topology) -> list[Finding]:
    """Boards soldered to their neighbours of which no NVLink is up; MIG devices have none."""
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
    """NVLinks that are down, or fewer or slower than those of like GPUs; and their errors."""
    found = []
    for group in likes(topology) or [list(topology.gpus)]:
        found += [*_nvlink_counts(topology, group), *_nvlink_rates(group)]
    wrong = [(g.id, f"{n:.0f} errors") for g in topology.gpus if (n := g.number("nvlink_errors"))]
    remedy = "clear the counters, run a load, read again; links whose count rises are failing"
    return found + grouped("nvlink-errors", 0.05, wrong, "NVLinks had to repeat or recover", remedy)


def _nvlink_counts(topology: Topology, group: list[Device]) -> list[Finding]:
    wired = _wired(topology)
    known = {gpu: n for gpu in group if (n := _links(gpu, wired.get(gpu.id, []))) is not None}
    # NCCL's XML has no word of links that are down: beside GPUs of its kind there should be some.
    kinds = {gpu.get("sm") for gpu, n in known.items() if n} - {None}
    bare = [gpu for gpu in group if gpu not in known and not wired.get(gpu.id)]
    known |= {gpu: 0 for gpu in bare if gpu.get("sm") in kinds}
    # A GPU whose links are all down has no bridge, which is a fault only if its likes have one.
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
    said = [(id, f"{rate / 1e9:g} GB/s") for id, rate in rates.items()]
    summary, remedy = "NVLinks slower than on like GPUs", "reset the GPUs, then the machine"
    harm = 1 - min(rates.values(), default=0.0) / (top or 1)
    return grouped("nvlink-slow", harm, said, summary, remedy, slow)


def _wired(topology: Topology) -> dict[str, list[tuple[str, int]]]:
    """By device, the other ends of its NVLinks with the number of links to each."""
    found: dict[str, list[tuple[str, int]]] = {}
    for link in topology.graph.topology.links:
        if link.kind is LinkKind.NVLINK:
            found.setdefault(link.a, []).append((link.b, link.count))
            found.setdefault(link.b, []).append((link.a, link.count))
    return found


def _links(gpu: Device, wired: list[tuple[str, int]]) -> int | None:
    """NVLinks of one GPU: its own count, or what its links or its switch-connected pairs show."""
    said = gpu.whole("nvlinks")
    if said is not None:
        return said
    # Direct links may lead to GPUs that are not visible here, so only switches allow a comparison.
    switched = any(end.startswith("NVS") for end, _ in wired)
    return sum(count for _, count in wired) if switched else None


def redirected(topology: Topology) -> list[Finding]:
    """ACS and a translating IOMMU send traffic between neighbours through the root complex."""
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
    """GPUs whose nearest NIC is beyond the CPU, though the NIC could be as near as others' are."""
    nics = [nic.id for nic in _fabric_nics(topology)]
    if flat(topology):
        return []  # nothing is known of how far anything is
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
    said = [(id, f"{level.name} to {nic}") for id, (level, nic) in nearest.items()]
    remedy = (
        "keep communication between nodes on the GPUs near a NIC, or move a NIC to their switch or"
        " socket"
    )
    return grouped("far-from-nic", harm, said, "GPUs far from every NIC", remedy, far)


def flat(topology: Topology) -> list[Finding]:
    """Every pair SYS although NUMA affinities agree: a virtual machine that hides its PCIe tree."""
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
                f"{pairs} pairs SYS on {len(homes)} NUMA node(s): a virtual machine without "
                f"the PCIe tree",
                "give NCCL the provider's topology (NCCL_TOPO_FILE), or pass the tree through")
    ]  # fmt: skip


def _fabric_nics(topology: Topology) -> list[Device]:
    """NICs that carry RDMA where any is known to; bridges and management ports are no one's NIC."""
    rdma = [n for n in topology.nics if _is_rdma(n)]
    real = [n for n in topology.nics if n.busid or not n.get("net_names")]
    return rdma or [n for n in real if not _for_management(n)]


def _for_management(nic: Device) -> bool:
    """A port that jobs do not talk over: slower than 10 Gbit/s, or on a bus of that kind."""
    rates = (nic.number("net_rate"), nic.number("pcie_rate"))
    slow = any(rate is not None and 0 < rate < _LEAST_FABRIC for rate in rates)
    return slow or nic.net_name.startswith(("usb", "enx", "bmc", "idrac", "ipmi"))


def _is_rdma(nic: Device) -> bool:
    families = ("mlx", "ib", "rdma", "roce", "hfi", "efa", "irdma", "bnxt_re")
    return any(name.startswith(families) for name in nic.net_names)


def _pcie_devices(topology: Topology) -> list[Device]:
    """GPUs, NICs that jobs use, and the bridges above either.

    None of a virtual machine, whose links are as they were given to it.
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
