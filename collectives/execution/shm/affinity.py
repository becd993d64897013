"""Which cores ranks run on: whether they outnumber them, and pinning one rank to one core."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from busbar.errors import Unsupported
from busbar.host import cores as cores_here
from busbar.host import numa_nodes

BINDINGS = ("none", "core", "numa")


def cores_of(cores: Sequence[Sequence[int]]) -> int:
    """How many cores all ranks together may use, from what each may use."""
    return len({core for mine in cores for core in mine})


def turn_group(autogroup: Path = Path("/proc/sys/kernel/sched_autogroup_enabled")) -> int:
    """A number that processes share among which a yield passes the core on.

    Where the kernel groups tasks by session (sched(7), "The autogroup feature"), it is the session.
    """
    try:
        grouped = autogroup.read_text().strip() == "1"
    except OSError:
        grouped = False
    return os.getsid(0) if grouped else 0


def place_cores(
    binding: str,
    local_rank: int,
    nlocal: int,
    allowed: Sequence[int],
    nodes: Sequence[Sequence[int]],
) -> list[int]:
    """The cores for one of ``nlocal`` ranks of a host.

    Neighbouring ranks go to one NUMA node before the next begins. ``core``: one core each, where
    ranks outnumber the cores neighbours share one: what a rank prefetches beyond its share is then
    mostly its own core's; ``numa``: all allowed cores of the node; ``none``: all allowed. Raises
    Unsupported for another binding, with the list.
    """
    if binding not in BINDINGS:
        raise Unsupported(f"no binding {binding!r}; there are: {', '.join(BINDINGS)}")
    usable = [[c for c in node if c in set(allowed)] for node in nodes] or [sorted(allowed)]
    order = [core for node in usable for core in node] or sorted(allowed)
    if binding == "none":
        return sorted(allowed)
    core = order[local_rank * len(order) // nlocal]
    if binding == "core":
        return [core]
    return next((node for node in usable if core in node), order)


def bind(binding: str, local_rank: int, nlocal: int) -> list[int]:
    """Pin this process (or this thread) and return its cores; before memory is first touched."""
    nodes = list(numa_nodes().values())
    cores = place_cores(binding, local_rank, nlocal, cores_here(), nodes)
    os.sched_setaffinity(0, cores)
    return cores
