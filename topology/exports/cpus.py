"""The CPUs near a GPU, and a fair share of them for every rank."""

from __future__ import annotations

from busbar.cpulist import members
from busbar.errors import ProbeError
from topology.model.topology import Kind, Topology


def affinity(topology: Topology, id: str) -> str | None:
    """The CPU list near a device, as stated or its NUMA node's; None where no source knows."""
    stated = topology.device(id).get("cpu_affinity")
    if stated is None:
        numa = topology.ancestor(id, Kind.NUMA)
        stated = numa.get("cpus") if numa else None
    return str(stated) if stated else None


def shares(topology: Topology, order: tuple[str, ...]) -> list[list[int]]:
    """Return each rank's CPUs: ranks whose GPUs have the same CPUs near share them equally.

    Hardware threads of one core stay together where the map knows cores; otherwise every run of
    consecutive CPUs is cut in equal parts, which keeps them together on the usual numberings.
    Raises ProbeError for a GPU whose CPUs nobody knows, or with fewer cores than ranks.
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
    """Logical core number of every CPU, cores in the order of the tree; empty if unknown."""
    return {cpu: number for number, core in enumerate(_cores(topology)) for cpu in core}


def _cores(topology: Topology) -> list[list[int]]:
    listed = (members(str(core.get("cpus") or "")) for core in topology.of(Kind.CORE))
    return sorted(cpus for cpus in listed if cpus)


def _units(topology: Topology, cpus: set[int]) -> list[list[list[int]]]:
    """Runs of units that may be shared out; a unit is a core's CPUs, or one CPU."""
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
