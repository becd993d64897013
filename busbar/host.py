"""Facts about this host: its name, processor, cores and NUMA nodes."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
from functools import cache
from pathlib import Path

from busbar.cpulist import members


def hostname() -> str:
    """This host's name without its domain."""
    return socket.gethostname().split(".")[0]


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
