"""Exports for cluster schedulers: Slurm's gres.conf, topology.conf, .yaml, Kubernetes labels.

Formats: Slurm's manual pages gres.conf(5), topology.conf(5), topology.yaml(5); Kubernetes' rules
for label names and values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from busbar.cpulist import listed, members
from busbar.errors import ProbeError
from topology.exports.cpus import affinity, core_numbers
from topology.model.topology import Device, Kind, Topology

_PREFIX = "topology.busbar"
_LABEL_MAX = 63


def gres_conf(topology: Topology) -> str:
    """One line a GPU: its device file, cores near it, NVLinks to every other (-1 itself)."""
    _one_node(topology)
    cores = core_numbers(topology)
    lines = [
        "# File= supposes that /dev/nvidiaN is GPU N of nvidia-smi; compare with nvidia-smi -q"
    ]
    if not cores:
        lines.append("# Cores= are the CPU numbers of the source; Slurm wants core numbers")
    for gpu in topology.gpus:
        near = members(affinity(topology, gpu.id) or "") or []
        known = [cores[cpu] for cpu in near if cpu in cores] if cores else near
        links = [
            -1 if other is gpu else topology.nvlinks(gpu.id, other.id) for other in topology.gpus
        ]
        parts = ["Name=gpu", f"File=/dev/nvidia{gpu.index}"]
        if _model(gpu):
            parts.insert(1, f"Type={_word(_model(gpu)).lower()}")
        if known:
            parts.append(f"Cores={listed(known)}")
        if any(count > 0 for count in links):
            parts.append(f"Links={','.join(map(str, links))}")
        lines.append(" ".join(parts))
    return "\n".join(lines) + "\n"


def topology_conf(topology: Topology) -> str:
    """The hosts of the map below one switch, or in the racks that were measured, below a spine.

    One machine knows no more of a cluster: lines of several are to be joined under the real
    switches.
    """
    racks = _racks(topology)
    lines = [f"SwitchName=leaf{n} Nodes={','.join(hosts)}" for n, hosts in enumerate(racks)]
    if len(racks) > 1:
        lines.append(f"SwitchName=spine Switches={_leaves(racks)}")
    return "\n".join(lines) + "\n"


def topology_yaml(topology: Topology) -> str:
    """The same as ``topology_conf`` in YAML."""
    racks = _racks(topology)
    lines = ["- topology: tree", "  cluster_default: true", "  tree:", "    switches:"]
    for n, hosts in enumerate(racks):
        lines += [f"      - switch: leaf{n}", f"        nodes: {','.join(hosts)}"]
    if len(racks) > 1:
        lines += ["      - switch: spine", f"        children: {_leaves(racks)}"]
    return "\n".join(lines) + "\n"


def _leaves(racks: Sequence[Sequence[str]]) -> str:
    return ",".join(f"leaf{n}" for n in range(len(racks)))


def _racks(topology: Topology) -> list[list[str]]:
    """Hosts by rack as ``measure --racks`` wrote them; all in one where the hosts are others."""
    hosts = _hosts(topology)
    text = str(topology.get("racks") or "")
    racks = [[_word(host) for host in rack.split()] for rack in text.split(";")]
    named = sorted(host for rack in racks for host in rack)
    return racks if named == sorted(hosts) else [hosts]


def k8s_labels(topology: Topology) -> str:
    """Node labels that a scheduler can select on, as a YAML fragment for ``kubectl patch``."""
    _one_node(topology)
    gpus = topology.gpus
    models = sorted({_model(gpu) for gpu in gpus} - {""})
    cells = {topology.relation(a.id, b.id).text for n, a in enumerate(gpus) for b in gpus[n + 1 :]}
    numas = topology.graph.topology.of(Kind.NUMA)
    labels = {
        "gpu.count": str(len(gpus)),
        "gpu.models": str(len(models)) if models else "unknown",
        "gpu.model": "mixed" if len(models) > 1 else (models[0] if models else "unknown"),
        "gpu.interconnect": ".".join(sorted(cells - {"?"})) or "none",
        "gpu.nvlink": str(any(cell.startswith("NV") for cell in cells)).lower(),
        "nic.count": str(len(topology.nics)),
        "numa.count": str(len(numas)),
    }
    lines = ["metadata:", "  labels:"]
    lines += [f'    {_PREFIX}/{name}: "{_value(value)}"' for name, value in labels.items()]
    return "\n".join(lines) + "\n"


def _one_node(topology: Topology) -> None:
    if not topology.gpus:
        raise ProbeError("export", "this map has no GPU")
    topology.of_one_host("export")


def _hosts(topology: Topology) -> list[str]:
    """Names of the hosts, as a scheduler knows them; localhost for one that no source names.

    Where ranks were measured, their hosts: that of whoever started them may be no node of the
    cluster.
    """
    ancestors = [topology.ancestor(rank.id, Kind.HOST) for rank in topology.of(Kind.RANK)]
    homes = {host.id for host in ancestors if host is not None}
    hosts = [host for host in topology.of(Kind.HOST) if not homes or host.id in homes]
    unnamed = "localhost" if len(hosts) < 2 else None
    return [_word(host.name) or unnamed or host.id for host in hosts] or ["localhost"]


def _model(gpu: Device) -> str:
    return str(gpu.get("model") or gpu.name or "")


def _word(text: str) -> str:
    """Text as one word of a configuration file: nothing in it can start another field or line."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")


def _value(text: str) -> str:
    """A label's value: at most 63 letters, digits, dashes and dots, alphanumeric at both ends."""
    return _word(_word(text)[:_LABEL_MAX])
