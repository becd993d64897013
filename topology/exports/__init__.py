"""Exports for other programs: pure functions from a map (and an order of GPUs) to text, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from busbar.errors import ProbeError
from topology.exports import binding, cluster, drawings
from topology.model.topology import Topology
from topology.sources import nccl_xml, own_json

Order = tuple[str, ...]


@dataclass(frozen=True)
class Export:
    """``write`` takes the map and the ids of GPUs in rank order; ``about`` is one line for users.

    ``ordered`` says whether the order matters; the others describe the whole machine.
    """

    write: Callable[[Topology, Order], str]
    ordered: bool
    about: str


def _whole(write: Callable[[Topology], str], about: str) -> Export:
    return Export(lambda topology, _: write(topology), False, about)


EXPORTS: dict[str, Export] = {
    "cuda": Export(binding.cuda, True, "CUDA_VISIBLE_DEVICES, for a shell"),
    "rankfile": Export(binding.rankfile, True, "rankfile for Open MPI's mpirun"),
    "mpich": Export(binding.mpich, True, "mpiexec line of MPICH with CPU binding"),
    "slurm": Export(binding.slurm, True, "srun line with CPU and GPU binding"),
    "gres-conf": _whole(cluster.gres_conf, "Slurm's gres.conf: files, cores and NVLinks"),
    "topology-conf": _whole(cluster.topology_conf, "Slurm's topology.conf"),
    "topology-yaml": _whole(cluster.topology_yaml, "Slurm's topology.yaml (25.05 or later)"),
    "k8s-labels": _whole(cluster.k8s_labels, "Kubernetes node labels, as YAML"),
    "nccl-xml": _whole(nccl_xml.dump, "NCCL's topology XML, for NCCL_TOPO_FILE"),
    "graphml": _whole(drawings.graphml, "the link graph as GraphML"),
    "dot": _whole(drawings.dot, "the link graph for Graphviz"),
    "json": _whole(own_json.dump, "the whole map, with the source of each fact"),
}


def export(name: str, topology: Topology, order: Order) -> str:
    """The export of that name. ProbeError for an unknown name, or a map that lacks its facts."""
    if name not in EXPORTS:
        raise ProbeError("export", f"no format {name!r}; there are {', '.join(EXPORTS)}")
    return EXPORTS[name].write(topology, order)
