"""What this host and this installation are: names, cores, NUMA nodes, our version."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from busbar.cpulist import members

__all__ = ["busbar_version", "cores", "cpu_model", "hostname", "numa_nodes", "revision"]

_ROOT = Path(__file__).resolve().parent.parent


def hostname() -> str:
    """This node's name without its domain."""
    return socket.gethostname().split(".")[0]


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
    """The cores that this process may run on; empty where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def numa_nodes(root: Path = Path("/sys/devices/system/node")) -> dict[int, list[int]]:
    """The cores of every NUMA node that has any; empty where the kernel does not say."""
    found = {}
    for path in sorted(root.glob("node[0-9]*/cpulist"), key=lambda path: int(path.parent.name[4:])):
        with contextlib.suppress(OSError):
            if inside := members(path.read_text()):
                found[int(path.parent.name[4:])] = inside
    return found


@cache
def busbar_version() -> str:
    """Our version: what the checkout that this file is in declares, else that of the installation.

    Run from files that were never installed there is no other; ``unknown`` without either.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = (_ROOT / "pyproject.toml").read_text()
        project = text.partition("[project]")[2].partition("\n[")[0]
        found = dict(re.findall(r'^(name|version) = "([^"]+)"$', project, re.MULTILINE))
        if found.get("name") == "busbar" and "version" in found:
            return str(found["version"])
    try:
        return version("busbar")
    except PackageNotFoundError:
        return "unknown"


def revision() -> str | None:
    """The git revision of the checkout that this file is in, if it is in one."""
    if not (_ROOT / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), "rev-parse", "HEAD"],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
