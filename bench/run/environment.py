"""The machine and software in a record; of environment variables only those on an allow-list."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from bench.launch.control_socket import ControlSocket
from busbar.cpulist import listed, members
from busbar.host import PORT_RATE, boot, cores, cpu_model, hostname
from busbar.installation import busbar_version, revision
from collectives.execution.transport import Transport
from collectives.execution.world import World
from reports.records.cores import Load, busiest
from reports.records.measurement import is_emulated


class RunContext(NamedTuple):
    """What a run has opened on one rank: the control messages between ranks, and transports.

    ``transport``: the one requested. ``baseline``: the transport whose library it is compared with,
    perhaps the same one. ``library``: that library's name and version. ``line``: the control socket
    to the process that started this rank.
    """

    world: World
    transport: Transport
    baseline: Transport
    library: str
    line: ControlSocket


# Settings of communication libraries, of launchers, and of emulated ports. Nothing else is
# recorded, as it may hold secrets.
_PREFIXES = ("NCCL_", "UCX_", "OMPI_MCA_", "PRTE_MCA_", "MPIR_CVAR_", "FI_", "I_MPI_", "OMP_")
_NAMES = (
    "CUDA_VISIBLE_DEVICES", "HYDRA_LAUNCHER_EXEC", "SLURM_JOB_ID", "SLURM_JOB_PARTITION", PORT_RATE,
)  # fmt: skip


def allowed(env: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that may be stored in a record."""
    return {k: v for k, v in sorted(env.items()) if k.startswith(_PREFIXES) or k in _NAMES}


def place(world: World, transport: Transport) -> dict[str, Any]:
    """Where this rank runs, as JSON values. A node's first rank adds its map's fingerprint."""
    first = list(world.nodes).index(world.nodes[world.rank]) == world.rank
    return {
        "pid": os.getpid(),
        "host": hostname(),
        "cpu": cpu_model(),
        "cpus": listed(cores()),
        "gpu": transport.device_busid or transport.device_uuid,
        "device": transport.device_name,
        "index": transport.device_index,
        "fingerprint": topology_fingerprint() if first else None,
    }


def load(world: World, transport: Transport) -> Load | None:
    """Ranks and cores where ranks share cores most; all ranks call this together.

    Containers and emulated hosts have host names of their own, but share one kernel and its cores,
    so ranks are grouped by kernel. None on GPUs, where ranks do not compete for cores.
    """
    if transport.on_gpu:
        return None
    everyone = world.collect([boot(), listed(cores())])
    number = {kernel: i for i, kernel in enumerate(dict.fromkeys(k for k, _ in everyone))}
    nodes = [number[kernel] for kernel, _ in everyone]
    load = world.broadcast(busiest(nodes, [members(cpus) or () for _, cpus in everyone]))
    return None if load is None else Load(load[0], load[1], is_emulated({"variables": os.environ}))


def machine() -> str | None:
    """This node's map as `busbar topology` makes it, as JSON text; None if no source works."""
    from busbar.errors import ProbeError
    from topology.sources import own_json
    from topology.sources.gather import gather

    try:
        return own_json.dump(gather(())[0])
    except ProbeError:
        return None


def topology_fingerprint() -> str | None:
    """The fingerprint of this node's map from sysfs; None if sysfs cannot be read."""
    from busbar.errors import ProbeError
    from topology.model.topology import fingerprint
    from topology.sources import sysfs

    try:
        return fingerprint(sysfs.read())
    except ProbeError:
        return None


def driver(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of the loaded NVIDIA driver; None without one."""
    try:
        match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", path.read_text())
    except OSError:
        return None
    return match[1] if match else None


def describe(
    library: str, world: World, transport: Transport, places: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The environment of a run, as JSON values without None; ``places``: `place` of every rank.

    ``started`` is the current time in UTC, to the millisecond. ``hosts`` has a name for each node.
    ``mapping`` has lists by rank: ``node`` (index into ``hosts``), ``cpus`` (that the rank may run
    on) and ``gpu`` (PCI address or UUID; empty without a GPU).
    """
    nodes = list(world.nodes)
    firsts = [nodes.index(node) for node in range(max(nodes) + 1)]
    level = world.threads()
    known = {
        "started": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "busbar": busbar_version(),
        "revision": revision(),
        "library": library,
        "mpi_threads": None if level is None else level.name,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "kernel": platform.release(),
        "driver": driver(),
        "cpu": ", ".join(dict.fromkeys(places[rank]["cpu"] for rank in firsts)),
        "cpus": len(cores()),
        "devices": list(dict.fromkeys(p["device"] for p in places if p["device"])) or None,
        "fingerprint": list(dict.fromkeys(places[rank]["fingerprint"] for rank in firsts)),
        "hosts": [places[rank]["host"] for rank in firsts],
        "ranks_per_node": [n for _, n in sorted(Counter(nodes).items())],
        "mapping": {
            "node": nodes,
            "cpus": [p["cpus"] for p in places],
            "gpu": [p["gpu"] or "" for p in places],
        },
        "transport": dict(transport.facts) or None,
        "variables": allowed(os.environ),
    }
    return {name: value for name, value in known.items() if value is not None}
