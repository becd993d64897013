"""Exports for other programs: functions from a map (and an order of GPUs) to text, by name.

Exports for launchers put rank r on GPU order[r] and on CPUs near it: Open MPI's mpirun(1)
(rankfiles), MPICH's Hydra (-bind-to user), Slurm's srun(1). Exports for schedulers follow Slurm's
manual pages gres.conf(5), topology.conf(5), topology.yaml(5), and Kubernetes' rules for labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from busbar.cpulist import listed, members
from busbar.errors import MissingLibrary, ProbeError
from topology.model.graph import Hop
from topology.model.topology import Device, Kind, Topology
from topology.sources import nccl_xml, own_json

Order = tuple[str, ...]


def visible(topology: Topology, order: Order) -> str:
    """The GPUs' indices such as ``0,3,2,1``, in NVML's numbering, which is by PCI bus id."""
    indices = [topology.device(id).index for id in order]
    return ",".join(str(n if index is None else index) for n, index in enumerate(indices))


def cuda(topology: Topology, order: Order) -> str:
    """Two lines for a shell. The first lets CUDA number GPUs by bus id, and not by speed."""
    return (
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID\n"
        f"export CUDA_VISIBLE_DEVICES={visible(topology, order)}\n"
    )


def rankfile(topology: Topology, order: Order) -> str:
    """A rankfile, one line per rank. Slots are logical cores if the map has cores, else CPUs."""
    cores = core_numbers(topology)
    lines = ["# mpirun --map-by rankfile:file=FILE (Open MPI 5), --rankfile FILE (Open MPI 4)"]
    if not cores:
        lines.append("# slots are the CPU numbers of the source: check that they are core numbers")
    lines += [f"# {line}" for line in cuda(topology, order).splitlines()]
    for rank, cpus in enumerate(shares(topology, order)):
        if unknown := [cpu for cpu in cpus if cores and cpu not in cores]:
            reason = (
                f"the map knows cores, but not those of CPUs {listed(unknown)}; add the whole"
                " machine's sysfs or hwloc"
            )
            raise ProbeError("export", reason)
        slots = listed(cores[cpu] for cpu in cpus) if cores else listed(cpus)
        lines.append(f"rank {rank}=localhost slot={slots}")
    return "\n".join(lines) + "\n"


def mpich(topology: Topology, order: Order) -> str:
    """A command line of mpiexec; Hydra separates ranks by commas and a rank's CPUs by ``+``."""
    bind = ",".join("+".join(map(str, cpus)) for cpus in shares(topology, order))
    env = f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={visible(topology, order)}"
    return f"{env} mpiexec -n {len(order)} -bind-to user:{bind} COMMAND\n"


def slurm(topology: Topology, order: Order) -> str:
    """A command line of srun, with one hexadecimal mask per task; bit n is CPU n.

    It takes all GPUs of the node, since map_gpu's numbers are those of the allocated GPUs; a
    comment says so if there are fewer tasks.
    """
    masks = ",".join(hex(sum(1 << cpu for cpu in cpus)) for cpus in shares(topology, order))
    every = len(topology.gpus)
    reason = (
        f"# all {every} GPUs of the node, since map_gpu counts the GPUs that the job has;"
        f" tasks use {visible(topology, order)}\n"
    )
    return (
        f"{reason if len(order) < every else ''}"
        f"srun --nodes=1 --ntasks={len(order)} --gpus-per-node={every} "
        f"--cpu-bind=mask_cpu:{masks} --gpu-bind=map_gpu:{visible(topology, order)} COMMAND\n"
    )


_PREFIX = "topology.busbar"
_LABEL_MAX = 63


def gres_conf(topology: Topology) -> str:
    """A gres.conf, one line per GPU: device file, near cores, NVLinks to each GPU (-1: itself)."""
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
    """A topology.conf: the map's hosts below one switch, or a switch per measured rack and a spine.

    A map of one machine has one host: join the lines of several maps under the real switches.
    """
    leaves = _racks(topology)
    lines = [*_unnamed_hosts(topology)]
    lines += [f"SwitchName=leaf{n} Nodes={','.join(hosts)}" for n, hosts in enumerate(leaves)]
    if len(leaves) > 1:
        lines.append(f"SwitchName=spine Switches={_leaves(leaves)}")
    return "\n".join(lines) + "\n"


def topology_yaml(topology: Topology) -> str:
    """A topology.yaml with the same switches as `topology_conf`."""
    leaves = _racks(topology)
    lines = [*_unnamed_hosts(topology), "- topology: tree", "  cluster_default: true"]
    lines += ["  tree:", "    switches:"]
    for n, hosts in enumerate(leaves):
        lines += [f"      - switch: leaf{n}", f"        nodes: {','.join(hosts)}"]
    if len(leaves) > 1:
        lines += ["      - switch: spine", f"        children: {_leaves(leaves)}"]
    return "\n".join(lines) + "\n"


def _leaves(leaves: Sequence[Sequence[str]]) -> str:
    return ",".join(f"leaf{n}" for n in range(len(leaves)))


def _racks(topology: Topology) -> list[list[str]]:
    """Hosts by rack as ``measure --racks`` wrote them; one rack if those are other hosts."""
    hosts = [host for host, _ in _hosts(topology)]
    found = [[_word(host) for host in rack] for rack in topology.racks]
    named = sorted(host for rack in found for host in rack)
    return found if named == sorted(hosts) else [hosts]


def k8s_labels(topology: Topology) -> str:
    """Node labels that a scheduler can select on, as a YAML fragment for ``kubectl patch``.

    A label whose value no source states is a comment instead, to be filled in.
    """
    _one_node(topology)
    gpus = topology.gpus
    models = sorted({_model(gpu) for gpu in gpus} - {""})
    cells = {topology.relation(a.id, b.id).text for n, a in enumerate(gpus) for b in gpus[n + 1 :]}
    stated = cells - {"?"}
    labels = {
        "gpu.count": str(len(gpus)),
        "gpu.models": str(len(models) or ""),
        "gpu.model": "mixed" if len(models) > 1 else "".join(models),
        "gpu.interconnect": ".".join(sorted(stated)) or ("" if cells else "none"),
        "gpu.nvlink": str(any(cell.startswith("NV") for cell in cells)).lower() if stated else "",
        "nic.count": str(len(topology.nics)),
        "numa.count": str(len(topology.of(Kind.NUMA)) or ""),
    }
    lines = ["metadata:", "  labels:"]
    for name, value in labels.items():
        line = f'{_PREFIX}/{name}: "{_value(value)}"'
        lines.append(f"    {line}" if value else f"    # {line}  no source states it; fill it in")
    return "\n".join(lines) + "\n"


def _one_node(topology: Topology) -> None:
    if not topology.gpus:
        raise ProbeError("export", "this map has no GPU")
    topology.of_one_host("export")


def _hosts(topology: Topology) -> list[tuple[str, bool]]:
    """The name of each host for a scheduler, or its id; and whether a source states the name.

    If the map has ranks, only their hosts count, since the host that started them may be no node.
    """
    ancestors = [topology.ancestor(rank.id, Kind.HOST) for rank in topology.of(Kind.RANK)]
    homes = {host.id for host in ancestors if host is not None}
    hosts = [host for host in topology.of(Kind.HOST) if not homes or host.id in homes]
    named = [(_word(host.name), host.id) for host in hosts]
    return [(name or id, bool(name)) for name, id in named] or [("HOST", False)]


def _unnamed_hosts(topology: Topology) -> list[str]:
    """A comment for each host without a name."""
    return [
        f"# no source names {host}: write the node's NodeName of slurm.conf in its place"
        for host, named in _hosts(topology)
        if not named
    ]


def _model(gpu: Device) -> str:
    return str(gpu.get("model") or gpu.name or "")


def _word(text: str) -> str:
    """Text as one word of a configuration file: no character can start another field or line."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")


def _value(text: str) -> str:
    """A label's value: at most 63 letters, digits or ``-._``; the ends are a letter or a digit."""
    return _word(_word(text)[:_LABEL_MAX])


def affinity(topology: Topology, id: str) -> str | None:
    """The list of CPUs near a device, as stated, else of its NUMA node; None if unknown."""
    stated = topology.device(id).get("cpu_affinity")
    if stated is None:
        numa = topology.ancestor(id, Kind.NUMA)
        stated = numa.get("cpus") if numa else None
    return str(stated) if stated else None


def shares(topology: Topology, order: tuple[str, ...]) -> list[list[int]]:
    """Return each rank's CPUs: ranks whose GPUs are near the same CPUs share these equally.

    If the map has cores, hardware threads of one core stay together. Otherwise each run of
    consecutive CPUs is cut into equal parts, which keeps them together in the usual numberings.
    Raises ProbeError if a GPU's CPUs are unknown, or if there are fewer cores than ranks.
    """
    near: dict[tuple[int, ...], list[int]] = {}
    for rank, id in enumerate(order):
        text = affinity(topology, id)
        cpus = members(text) if text else None
        if not cpus:
            reason = (
                f"no source says which CPUs are near {id}; add sysfs or a topo -m with CPU Affinity"
            )
            raise ProbeError("export", reason)
        near.setdefault(tuple(cpus), []).append(rank)
    cpus_of: list[list[int]] = [[] for _ in order]
    for shared, ranks in near.items():
        for run in _units(topology, set(shared)):
            each, extra = divmod(len(run), len(ranks))
            start = 0
            for place, rank in enumerate(ranks):
                size = each + (place < extra)
                cpus_of[rank] += [cpu for unit in run[start : start + size] for cpu in unit]
                start += size
    for rank, chosen in enumerate(cpus_of):
        if not chosen:
            raise ProbeError("export", f"fewer cores near {order[rank]} than ranks that want them")
    return [sorted(chosen) for chosen in cpus_of]


def core_numbers(topology: Topology) -> dict[int, int]:
    """Each CPU's logical core number, with cores in the order of their CPUs; empty if unknown."""
    return {cpu: number for number, core in enumerate(_cores(topology)) for cpu in core}


def _cores(topology: Topology) -> list[list[int]]:
    listed = (members(str(core.get("cpus") or "")) for core in topology.of(Kind.CORE))
    return sorted(cpus for cpus in listed if cpus)


def _units(topology: Topology, cpus: set[int]) -> list[list[list[int]]]:
    """The units to divide between ranks, in groups: a unit is the CPUs of a core, all in one group.

    If the map does not list the cores of these CPUs, a unit is one CPU, and a group is a range of
    adjacent CPUs.
    """
    cores = [[cpu for cpu in core if cpu in cpus] for core in _cores(topology)]
    cores = [core for core in cores if core]
    if cpus and {cpu for core in cores for cpu in core} == cpus:
        return [cores]
    runs: list[list[list[int]]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][-1][-1] == cpu - 1:
            runs[-1].append([cpu])
        else:
            runs.append([[cpu]])
    return runs


#: Kinds of devices that a graph of links leaves out: parts of CPUs and GPUs, and ranks.
HIDDEN = (Kind.CACHE, Kind.CORE, Kind.MIG, Kind.RANK)


def label(device: Device) -> str:
    """The id, with the product or interface name in brackets if one is known."""
    name = str(device.get("model") or device.name or "")
    return f"{device.id} ({name})" if name and name != device.id else device.id


def links(topology: Topology) -> list[Hop]:
    """The links between shown devices, one per pair; links that routing assumes are included."""
    shown = {device.id for device in _nodes(topology)}
    return list({hop.link: hop for hop in topology.graph.hops if hop.link <= shown}.values())


def graphml(topology: Topology) -> str:
    """The graph as GraphML.

    Node attributes: label, kind, busid. Edge attributes: kind, count, bandwidth (bytes per second,
    one direction, all parallel links together) and assumed. Raises MissingLibrary without networkx.
    """
    try:
        import networkx as nx
    except ImportError:
        raise MissingLibrary("networkx", "graphml") from None

    graph = nx.Graph()
    for device in _nodes(topology):
        facts = {"label": label(device), "kind": device.kind.value, "busid": device.busid or ""}
        graph.add_node(device.id, **facts)
    for hop in links(topology):
        facts = {name: getattr(hop, name) for name in ("kind", "count", "bandwidth", "assumed")}
        graph.add_edge(hop.a, hop.b, **facts)
    return "\n".join(nx.generate_graphml(graph)) + "\n"


def dot(topology: Topology) -> str:
    """The graph in the language of Graphviz; links with more bandwidth are drawn wider."""
    lines = ["graph topology {", "  node [shape=box];"]
    for device in _nodes(topology):
        lines.append(f"  {_quoted(device.id)} [label={_quoted(label(device))}];")
    for hop in links(topology):
        memory = hop.kind == "memory"
        text = "" if memory else f"{hop.kind} x{hop.count}, {hop.bandwidth / 1e9:.1f} GB/s"
        width = 1 if memory else min(8, 1 + hop.bandwidth / 1e11)
        lines.append(
            f"  {_quoted(hop.a)} -- {_quoted(hop.b)} [label={_quoted(text)}, penwidth={width:.1f}];"
        )
    return "\n".join([*lines, "}"]) + "\n"


def _nodes(topology: Topology) -> list[Device]:
    return [device for device in topology.graph.topology.devices if device.kind not in HIDDEN]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'


@dataclass(frozen=True)
class Export:
    """A format. ``write``: makes the text from a map and the ids of GPUs in rank order.

    ``ordered``: True if the order is used; other formats describe the whole machine. ``gpus``: True
    if there is nothing to write without a GPU.
    """

    write: Callable[[Topology, Order], str]
    ordered: bool
    about: str
    gpus: bool = True


def _whole(write: Callable[[Topology], str], about: str, gpus: bool = False) -> Export:
    return Export(lambda topology, _: write(topology), False, about, gpus)


EXPORTS: dict[str, Export] = {
    "cuda": Export(cuda, True, "CUDA_VISIBLE_DEVICES, for a shell"),
    "rankfile": Export(rankfile, True, "rankfile for Open MPI's mpirun"),
    "mpich": Export(mpich, True, "mpiexec line of MPICH with CPU binding"),
    "slurm": Export(slurm, True, "srun line with CPU and GPU binding"),
    "gres-conf": _whole(gres_conf, "Slurm's gres.conf: files, cores and NVLinks", gpus=True),
    "topology-conf": _whole(topology_conf, "Slurm's topology.conf"),
    "topology-yaml": _whole(topology_yaml, "Slurm's topology.yaml (25.05 or later)"),
    "k8s-labels": _whole(k8s_labels, "Kubernetes node labels, as YAML", gpus=True),
    "nccl-xml": _whole(nccl_xml.dump, "NCCL's topology XML, for NCCL_TOPO_FILE"),
    "graphml": _whole(graphml, "the link graph as GraphML"),
    "dot": _whole(dot, "the link graph for Graphviz"),
    "json": _whole(own_json.dump, "the whole map, with the source of each fact"),
}


def export(name: str, topology: Topology, order: Order) -> str:
    """The map in the format ``name``. Raises ProbeError if it is unknown or the map lacks facts."""
    if name not in EXPORTS:
        raise ProbeError("export", f"no format {name!r}; there are {', '.join(EXPORTS)}")
    return EXPORTS[name].write(topology, order)
