"""Facts with their provenance, and the list of the names and units that facts have.

Bytes, seconds and bytes per second inside; any other unit stands in the name.
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
    """Something a source was asked and could not say, or said and the map has not; no crash.

    ``call`` is COUNT where devices of the text are missing in the map.
    """

    source: str
    subject: str
    call: str
    reason: str


#: What a gap calls the comparison of a text's devices with the map's.
COUNT = "count"

#: What a device may be known by. Names not listed here are allowed and shown, never interpreted.
DEVICE_FACTS: dict[str, str] = {
    "label": "what the source called it, where that is not our id",
    "model": "product name, or CPU model",
    "vendor": "vendor as the source wrote it: GenuineIntel, 0x15b3",
    "pci_name": "name of the PCI device id in the pci.ids list",
    "pci_class": "PCI class code, six hex digits with 0x",
    "pci_device": "PCI device id, four hex digits with 0x",
    "arch": "CPU architecture: x86_64, arm64, ppc64",
    "family": "CPU family",
    "cpu_model": "CPU model number within the family",
    "sm": "compute capability as NCCL writes it: 70, 80, 90",
    "gcn": "architecture of AMD's GPU as RCCL writes it: gfx942",
    "pcie_gen": "PCIe generation of the upstream link now",
    "pcie_gen_max": "highest generation this device and its slot agree on",
    "pcie_gen_device_max": "highest generation the device itself could do",
    "pcie_width": "lanes of the upstream link now",
    "pcie_width_max": "lanes the device can do",
    "pcie_rate": "bytes per second of the upstream link now, as signalled, one direction",
    "port_busid": "bus id of the port this device plugs into",
    "port_gen_max": "highest generation of that port",
    "port_width_max": "lanes of that port",
    "acs": "ACS redirects peer traffic at this port",
    "port_acs": "ACS redirects peer traffic at the port this device plugs into",
    "iommu": "IOMMU domain of the device: identity, DMA, DMA-FQ",
    "vbios": "VBIOS version",
    "c2c": "chip-to-chip link to the CPU is on",
    "clock_sm_hz": "SM clock now",
    "clock_sm_app_hz": "SM application clock",
    "clock_sm_max_hz": "SM clock at most",
    "clock_memory_hz": "memory clock now",
    "clock_memory_app_hz": "memory application clock",
    "clock_memory_max_hz": "memory clock at most",
    "throttle": "reasons that slow the clocks now (idle and clock settings are not among them)",
    "idle": "the GPU says that its clocks are low because it has nothing to do",
    "pstate": "performance state, P0 fastest",
    "power_w": "power drawn now",
    "power_limit_w": "enforced power limit",
    "power_default_w": "power limit as shipped",
    "energy_j": "energy since the driver was loaded",
    "temperature_c": "GPU temperature",
    "temperature_slowdown_c": "temperature at which clocks are cut",
    "ecc": "ECC mode is on",
    "ecc_corrected": "corrected memory errors since the last reset",
    "ecc_uncorrected": "uncorrected memory errors since the last reset",
    "ecc_uncorrected_lifetime": "uncorrected memory errors in the card's life",
    "rows_pending": "row remapping or page retirement waits for a reset",
    "rows_failed": "row remapping has failed",
    "memory": "bytes of memory",
    "memory_used": "bytes of memory in use",
    "bar1": "bytes of BAR1",
    "mig": "MIG mode is on",
    "virtualization": "how a GPU is given to a virtual machine, as nvidia-smi writes it",
    "processes": "number of compute processes",
    "utilization_percent": "GPU utilisation",
    "copy_rate": "measured bytes per second of a copy inside the device",
    "host_to_device": "measured bytes per second from the host",
    "device_to_host": "measured bytes per second to the host",
    "host_both": "measured bytes per second between host and device, both ways at once",
    "cpu_affinity": "CPU list: 0-19,40-59",
    "numa_affinity": "NUMA node list: 0 or 0,2-8",
    "gpu_numa_id": "NUMA node that the GPU's own memory is",
    "nvlinks": "NVLinks that are up",
    "nvlinks_down": "numbers of the NVLinks that are down",
    "nvlink_version": "NVLink version",
    "nvlink_rate": "bytes per second of one NVLink, one direction, as the driver states it",
    "nvlink_errors": "replay, recovery and CRC errors on all NVLinks",
    "c2c_links": "chip-to-chip links to the CPU",
    "c2c_rate": "bytes per second of the chip-to-chip link, one direction",
    "fabric_state": "NVSwitch fabric: not supported, not started, in progress, completed",
    "fabric_status": "NVSwitch fabric registration: success or the error",
    "card": "bus id of the card, for a port that shares it with a port that has it",
    "net_names": "network interfaces on the device",
    "net_rate": "bytes per second of the network port, one direction",
    "net_state": "the port's state: up, down, ACTIVE",
    "guid": "NIC GUID",
    "gdr": "GPUDirect RDMA works",
    "size": "bytes of a cache",
    "cpus": "CPU list of a NUMA node, cache or core",
    "multiprocessors": "SMs of a GPU or MIG device",
}

#: What the machine as a whole may be known by.
MACHINE_FACTS: dict[str, str] = {
    "driver_version": "NVIDIA driver",
    "cuda_version": "highest CUDA version of the driver",
    "kernel": "kernel release",
    "iommu": "on or off",
    "hypervisor": "the CPU says that this is a virtual machine",
    "arch": "CPU architecture",
    "vendor": "CPU vendor",
    "family": "CPU family",
    "cpu_model": "CPU model number",
    "first": (
        "seconds of one exchange behind a barrier, a number a block; see topology.measured.sweep"
    ),
}

#: Facts in which two sources may differ and both be right: they change from one moment to the next,
#: or every source spells them in its own way.
VOLATILE = frozenset(
    {
        "label",
        "guid",
        "net_names",
        "pcie_gen",
        "pcie_rate",
        "clock_sm_hz",
        "clock_memory_hz",
        "throttle",
        "idle",
        "pstate",
        "power_w",
        "energy_j",
        "temperature_c",
        "memory_used",
        "bar1_used",
        "processes",
        "utilization_percent",
        "net_state",
        "nvlink_errors",
        "ecc_corrected",
    }
)

#: What a pair of devices may be known by. Those in SYMMETRIC hold both ways; the others are
#: directed.
PAIR_FACTS: dict[str, str] = {
    "level": "nearest common PCIe ancestor: PIX PXB PHB NODE SYS",
    "nvlinks": "NVLinks between the two, directly or through a switch",
    "p2p_read": "P2P status: OK, CNS chipset, GNS GPU, TNS topology, DR registry, NS, U unknown",
    "p2p_write": "as p2p_read",
    "p2p_nvlink": "as p2p_read",
    "p2p_atomics": "as p2p_read",
    "p2p_pci": "as p2p_read",
    "bandwidth": "measured bytes per second, one direction, P2P on where it can be",
    "bandwidth_no_p2p": "measured bytes per second, one direction, P2P off",
    "bandwidth_both": "measured bytes per second, both directions together",
    "bandwidth_both_no_p2p": "as bandwidth_both, P2P off",
    "latency": "measured seconds, one way",
    "latency_no_p2p": "measured seconds, one way, P2P off",
    "latency_low": "lower end of the latency's 95 % interval; so with _high, and with bandwidth",
    "latency_high": "upper end of it",
    "bandwidth_low": "as latency_low",
    "bandwidth_high": "as latency_high",
    "bandwidth_both_low": "as latency_low",
    "bandwidth_both_high": "as latency_high",
    "p2p_access": "CUDA says that a can reach b's memory",
    "trip_N": (
        "measured seconds of a message of N bytes, a number a block; see topology.measured.sweep"
    ),
    "swap_N": "as trip_N, both ways at once; so add_N and burst_N",
    "numa_distance": "SLIT distance between NUMA nodes, 10 to itself",
}
SYMMETRIC = frozenset({"level", "nvlinks"})
