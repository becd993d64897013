"""Launchers' options that put rank r on GPU order[r] and on CPUs near it.

Formats: Open MPI's mpirun(1) (rankfiles), MPICH's Hydra (-bind-to user), Slurm's srun(1).
"""

from __future__ import annotations

from busbar.cpulist import listed
from busbar.errors import ProbeError
from topology.exports.cpus import core_numbers, shares
from topology.model.topology import Topology

Order = tuple[str, ...]


def visible(topology: Topology, order: Order) -> str:
    """``0,3,2,1``: the GPUs' indices in NVML's order, which is that of PCI bus ids."""
    indices = [topology.device(id).index for id in order]
    return ",".join(str(n if index is None else index) for n, index in enumerate(indices))


def cuda(topology: Topology, order: Order) -> str:
    """Two lines for a shell: CUDA counts the fastest GPU first unless told to go by bus id."""
    return (
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID\n"
        f"export CUDA_VISIBLE_DEVICES={visible(topology, order)}\n"
    )


def rankfile(topology: Topology, order: Order) -> str:
    """One line a rank. Slots are logical cores where the map knows cores, else CPU numbers."""
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
    """One mpiexec line; Hydra separates ranks by commas and a rank's CPUs by plus signs."""
    bind = ",".join("+".join(map(str, cpus)) for cpus in shares(topology, order))
    env = f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={visible(topology, order)}"
    return f"{env} mpiexec -n {len(order)} -bind-to user:{bind} COMMAND\n"


def slurm(topology: Topology, order: Order) -> str:
    """One srun line; masks are hexadecimal, bit n is CPU n, one mask a task."""
    masks = ",".join(hex(sum(1 << cpu for cpu in cpus)) for cpus in shares(topology, order))
    return (
        f"srun --nodes=1 --ntasks={len(order)} --gpus-per-node={len(topology.gpus)} "
        f"--cpu-bind=mask_cpu:{masks} --gpu-bind=map_gpu:{visible(topology, order)} COMMAND\n"
    )
