"""Facts about this host: its name, processor, cores and NUMA nodes."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
from collections.abc import Iterator, Mapping
from functools import cache
from math import inf
from pathlib import Path

from busbar.cpulist import members
from busbar.errors import Unsupported

#: The environment variable with the bytes/s of every port of `bench.cluster`, each way. It is not
#: set if ports differ, or if something else than ports limits what hosts send.
PORT_RATE = "BUSBAR_PORT_RATE"


def hostname() -> str:
    """This host's name without its domain."""
    return socket.gethostname().split(".")[0]


def emulated_port_rate(env: Mapping[str, str]) -> float | None:
    """Bytes/s of each emulated host's port by `PORT_RATE`; None if it is not set.

    Raises Unsupported for anything but a rate above 0.
    """
    text = env.get(PORT_RATE)
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        if 0 < (rate := float(text)) < inf:
            return rate
    raise Unsupported(f"{PORT_RATE}: {text[:40]!r} is no rate of ports in bytes/s; unset it")


def boot(file: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """An identifier of the running kernel. Processes with the same one have the same clocks."""
    try:
        return file.read_text().strip()
    except OSError:
        return hostname()


@cache
def cpu_model() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("model name", "cpu model")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> list[int]:
    """The cores that this process may run on; empty if the system does not report them."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def numa_nodes(root: Path = Path("/sys/devices/system/node")) -> dict[int, list[int]]:
    """The cores of each NUMA node that has any; empty if the kernel does not report them."""
    nodes = {}
    for path in sorted(root.glob("node[0-9]*/cpulist"), key=lambda path: int(path.parent.name[4:])):
        with contextlib.suppress(OSError):
            if inside := members(path.read_text()):
                nodes[int(path.parent.name[4:])] = inside
    return nodes


def cgroups(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, Path]]:
    """The root of the hierarchy and the path of each cgroup, from this process's own upwards.

    Of version 1 and 2, for a controller such as ``cpu``. ``root`` replaces ``/`` in tests.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = base / path.lstrip("/")
        # A container may see its own group at the root, whatever the path on the host.
        for one in (group, *group.parents):
            yield base, one
            if one == base:
                break


def core_share(root: Path = Path("/")) -> float:
    """How many cores' time this process may use: its cores, or less by a quota of its cgroups."""
    shares = [float(max(1, len(cores())))]
    for _, group in cgroups("cpu", root):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = (group / "cpu.max").read_text().split()
            shares.append(int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = (
                (group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
            if int(quota) > 0:
                shares.append(int(quota) / int(period))
    return min(shares)
