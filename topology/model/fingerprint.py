"""A machine's fingerprint: equal for machines of the same hardware, whatever their state."""

from __future__ import annotations

import hashlib

from topology.model.topology import Kind, Topology

# What a machine is made of. Names, serial numbers, clocks, temperatures, free memory and what the
# links have trained to just now are left out: they differ between equal nodes, or from hour to
# hour.
_MACHINE = ("arch", "vendor", "model", "family", "cpu_model", "iommu")
_DEVICE = (
    "model", "vendor", "cpu_model", "pci_class", "pci_device", "sm", "cpus", "size", "pcie_gen_max",
    "pcie_width_max", "multiprocessors",
)  # fmt: skip
_LENGTH = 16


def fingerprint(topology: Topology) -> str:
    """Sixteen hex digits of the SHA-256 over devices, where they hang, and the links between them.

    Two sources that know different things give different fingerprints, so compare like with like.
    """
    lines = [f"{name}={topology.get(name)}" for name in _MACHINE]
    for device in topology.devices:
        if device.kind is Kind.MIG:  # made and unmade while the machine runs
            continue
        facts = (f"{name}={device.get(name)}" for name in _DEVICE)
        where = f"{device.kind.value} {device.id} {device.busid} in {device.parent}"
        lines.append(" ".join((where, *facts)))
    for link in topology.links:
        ends = " ".join(sorted((link.a, link.b)))
        lines.append(f"link {link.kind.value} {ends} x{link.count} v{link.version}")
    text = "\n".join(sorted(lines))
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]
