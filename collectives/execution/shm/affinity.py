"""CPU affinity of ranks: pinning, and whether ranks outnumber the cores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from busbar.errors import Unsupported
from busbar.host import cores as cores_here
from busbar.host import numa_nodes

AFFINITIES = ("none", "core", "numa")


def cores_of(cores: Sequence[Sequence[int]]) -> int:
    """The number of different cores that all ranks together may use."""
    return len({core for mine in cores for core in mine})


def yield_group(autogroup: Path = Path("/proc/sys/kernel/sched_autogroup_enabled")) -> int:
    """The scheduling group of this process, as a number. A yield passes the core on only within it.

    If the kernel groups tasks by session (sched(7), "The autogroup feature"), it is the session id;
    otherwise 0.
    """
    try:
        grouped = autogroup.read_text().strip() == "1"
    except OSError:
        grouped = False
    return os.getsid(0) if grouped else 0


def place_cores(
    affinity: str,
    local_rank: int,
    nlocal: int,
    allowed: Sequence[int],
    nodes: Sequence[Sequence[int]],
) -> list[int]:
    """The cores for one of ``nlocal`` ranks of a host.

    Neighbouring ranks fill one NUMA node before the next one. ``core``: one core each. If ranks
    outnumber the cores, neighbours share one, because what a rank prefetches beyond its share then
    mostly belongs to its own core. ``numa``: all allowed cores of the node. ``none``: all allowed
    cores. Raises Unsupported for any other affinity, with the list.
    """
    if affinity not in AFFINITIES:
        raise Unsupported(f"no affinity {affinity!r}; there are: {', '.join(AFFINITIES)}")
    usable = [[c for c in node if c in set(allowed)] for node in nodes] or [sorted(allowed)]
    order = [core for node in usable for core in node] or sorted(allowed)
    if affinity == "none":
        return sorted(allowed)
    core = order[local_rank * len(order) // nlocal]
    if affinity == "core":
        return [core]
    return next((node for node in usable if core in node), order)


def set_affinity(affinity: str, local_rank: int, nlocal: int) -> list[int]:
    """Pin this process (or thread) and return its cores. Call it before memory is first used."""
    nodes = list(numa_nodes().values())
    cores = place_cores(affinity, local_rank, nlocal, cores_here(), nodes)
    os.sched_setaffinity(0, cores)
    return cores
