"""Rates of links that were not measured: published by NVIDIA, or assumed.

The assumed rates are NCCL's (its ``topo.h``): close to the rate of a copy, and below the data
sheet. A rate that a source states, such as a NIC's speed, is used unchanged.

The published PCIe rate is the card's own: a slot may give less. NVLinks are those of boards that
are soldered to their neighbours (SXM); a card with an optional bridge may have none. Sources, all
NVIDIA's: the architecture white papers of Pascal (WP-08019-001), Volta (WP-08608-001), Ampere A100
(2020) and Hopper H100 (2022); the data sheets of A800, H800, H20, H200 and B200; the product briefs
of T4, A10, A30, A40, L4, L40 and L40S; the specification pages of GeForce 10 to 50 and of RTX A and
RTX PRO cards.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Published(NamedTuple):
    """The PCIe generation and lanes of a card; ``nvlinks``: the number that a board always has.

    ``sm``: the compute capability of cards that have NVLinks or may have them.
    """

    pcie_gen: int
    pcie_width: int = 16
    nvlinks: int = 0
    sm: int | None = None


#: The first pattern that matches the name is used.
_MODELS: tuple[tuple[str, Published], ...] = (
    (r"\bP100-SXM2", Published(3, nvlinks=4, sm=60)),
    (r"\bV100-SXM[23]", Published(3, nvlinks=6, sm=70)),
    (r"\bA100-SXM", Published(4, nvlinks=12, sm=80)),
    (r"\bA800-SXM", Published(4, nvlinks=8, sm=80)),
    (r"\bH100 (80|64|96)GB HBM[23]\b", Published(5, nvlinks=18, sm=90)),
    (r"\bH100 SXM", Published(5, nvlinks=18, sm=90)),
    (r"\bH800( SXM5?)?$", Published(5, nvlinks=8, sm=90)),
    (r"\bH20(-3e)?$", Published(5, nvlinks=18, sm=90)),
    (r"\bH200$", Published(5, nvlinks=18, sm=90)),
    (r"\bG?B200\b", Published(5, nvlinks=18, sm=100)),
    (r"\bG?B300\b", Published(5, nvlinks=18, sm=103)),
    (r"\b(GH200|H100|H200|H800)\b", Published(5, sm=90)),
    (r"\b(A100|A800|A30)\b", Published(4, sm=80)),
    (r"\b(A40|A10G?|A16)\b", Published(4, sm=86)),
    (r"\b(L4|L40S?|L20)\b", Published(4)),
    (r"\bA2\b", Published(4, 8)),
    (r"\bRTX PRO (2000|4000 Blackwell SFF)", Published(5, 8)),
    (r"\bRTX PRO \d{4}", Published(5)),
    (r"\bRTX (A400|A1000|2000 Ada)\b", Published(4, 8)),
    (r"\bRTX \d{4} Ada", Published(4)),
    (r"\bRTX A\d{4}", Published(4, sm=86)),
    (r"\b(RTX 5060|RTX 5050)\b", Published(5, 8)),
    (r"\bRTX 50\d0", Published(5)),
    (r"\b(RTX 4060|RTX 3050)\b", Published(4, 8)),
    (r"\bRTX 30\d0", Published(4, sm=86)),
    (r"\bRTX 40\d0", Published(4)),
    (r"\bRTX 20\d0", Published(3, sm=75)),
    (r"\bV100\b", Published(3, sm=70)),
    (r"\bP100\b", Published(3, sm=60)),
    (r"\b(RTX|GTX) (20|16|10)\d0", Published(3)),
    (r"\b(T4|P40|P4|M60|M40|K80|TITAN)\b", Published(3)),
)


def published(model: object) -> Published | None:
    """The published rates of a model, or None if the table does not have it."""
    name = str(model or "")
    return next((row for pattern, row in _MODELS if re.search(pattern, name)), None)


GB = 1e9

#: Signalling rate in GT/s to PCIe generation.
PCIE_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
#: NCCL's rate of one PCIe lane in units of 100 Mbit/s, by generation.
_LANE_RATE = {1: 15, 2: 30, 3: 60, 4: 120, 5: 240, 6: 480}
#: NCCL's planned share of an NVLink's nominal rate: 20 of NVLink 2's and 3's 25 GB/s.
NVLINK_PLANNED = 20 / 25
#: GB/s of one NVLink by compute capability: the first row whose capability the GPU reaches is used.
_NVLINK = ((100, 40.1), (90, 20.6), (86, 12.0), (80, 20.0), (70, 20.0), (60, 18.0))
#: GB/s of one NVLink by its version, for sources that know no compute capability.
_NVLINK_VERSION = {1: 18.0, 2: 20.0, 3: 20.0, 4: 20.6, 5: 40.1, 6: 40.1}
#: GB/s of one xGMI link by architecture of AMD's GPUs, from RCCL's ``topo.h``; 24 for others.
_XGMI = (("gfx90a", 36.0), ("910", 36.0), ("gfx94", 48.0), ("94", 48.0))
#: The most NVLinks of a GPU, by compute capability.
_NVLINK_PORTS = ((100, 18), (90, 18), (86, 4), (80, 12), (75, 2), (70, 6), (60, 4))
MAX_NVLINKS = 18
#: The compute capabilities, each with a GPU, that are assumed where no source states one.
_ASSUMED_MODELS = {70: "V100", 80: "A100", 90: "H100"}
C2C_RATE = 450 * GB
#: NCCL's planned share of the signalled PCIe rate: 12 of gen3 x16's 15.75 GB/s.
PLANNED = 12 / (16 * 8 / 8 * 128 / 130)
#: Assumptions if a source states nothing, so that sets of a bare matrix can be ranked: gen3 x16
#: PCIe, and Skylake's link between sockets. Every estimate that depends on them says so.
ASSUMED_PCIE = (3, 16)
ASSUMED_CPU = 10 * GB
#: NUMA nodes of one package are limited only by memory; NCCL plans 5000 GB/s.
LOCAL = 5000 * GB


def generation(text: str) -> int | None:
    """The PCIe generation of ``8 GT/s``, ``32.0 GT/s PCIe`` or ``2.5``, else None."""
    head = text.strip().split(" ")[0]
    try:
        return PCIE_GENERATIONS.get(float(head))
    except ValueError:
        return None


def pcie(gen: int, width: int) -> float:
    """Bytes per second of a PCIe link: width x rate / 80 GB/s, so gen3 x16 is 12 GB/s."""
    return width * _LANE_RATE.get(gen, _LANE_RATE[6 if gen > 6 else 1]) / 80 * GB


def nvlink(sm: int | None, version: int | None = None, links: int = 0) -> float:
    """Bytes per second of one NVLink, by compute capability or else by NVLink version.

    Without both, of the oldest generation whose GPUs can have ``links`` each; see `assumed_sm`.
    """
    if sm is None and version is not None:
        return _NVLINK_VERSION.get(version, _NVLINK_VERSION[6 if version > 6 else 1]) * GB
    sm = assumed_sm(links) if sm is None else sm
    return next((rate for least, rate in _NVLINK if sm >= least), 18.0) * GB


def assumed_sm(links: int) -> int:
    """The least compute capability from 70 on whose GPUs can have ``links`` NVLinks."""
    enough = [least for least, ports in _NVLINK_PORTS if ports >= min(links, MAX_NVLINKS)]
    return min(least for least in enough if least in _ASSUMED_MODELS)


def assumed_model(links: int) -> str:
    """The GPU whose NVLinks are assumed for GPUs of ``links`` NVLinks each: ``H100`` for 18."""
    return _ASSUMED_MODELS[assumed_sm(links)]


def xgmi(gcn: str) -> float:
    """Bytes per second of one xGMI link by AMD's architecture, as gfx942, or 910 in older files."""
    return next((rate for name, rate in _XGMI if gcn.startswith(name)), 24.0) * GB


def nvlink_ports(sm: int | None) -> int:
    """The most NVLinks that a GPU of this compute capability can have."""
    if sm is None:
        return MAX_NVLINKS
    return next((ports for least, ports in _NVLINK_PORTS if sm >= least), 0)


def between_cpus(arch: str, vendor: str, family: int | None, model: int | None) -> float | None:
    """Bytes per second between two sockets, or None for a CPU that is not in NCCL's table.

    Skylake 10, Sapphire Rapids 22, Emerald Rapids 40, older Intel 6; AMD 16; POWER9 32; ARM 6 GB/s.
    """
    arch, vendor = arch.lower(), vendor.lower()
    if arch.startswith("ppc"):
        return 32 * GB
    if arch.startswith(("arm", "aarch")):
        return 6 * GB
    if "amd" in vendor:
        return 16 * GB
    if "intel" in vendor:
        if family != 6 or model is None:
            return 10 * GB
        table = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0))
        return next((rate for least, rate in table if model >= least), 6.0) * GB
    return None


def network(mbit: float) -> float:
    """Bytes per second of a network port whose speed is given in Mbit/s."""
    return mbit / 8 * 1e6
