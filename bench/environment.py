"""What a record says of the machine and the software; the environment by allow-list only."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["allowed", "busbar_version", "cpu_model", "describe", "hostname"]

# Settings of the libraries that move the bytes. Anything else, secrets above all, stays out.
_PREFIXES = ("NCCL_", "UCX_", "OMPI_MCA_", "PRTE_MCA_", "MPIR_CVAR_", "FI_", "I_MPI_", "OMP_")
_NAMES = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_JOB_PARTITION")


def allowed(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that a record may keep."""
    return {k: v for k, v in sorted(env.items()) if k.startswith(_PREFIXES) or k in _NAMES}


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


def busbar_version() -> str:
    """Our version, or ``unknown`` when run from files that were never installed."""
    try:
        return version("busbar")
    except PackageNotFoundError:
        return "unknown"


def _revision() -> str | None:
    """The git revision of the checkout that this file is in, if it is in one."""
    here = Path(__file__).resolve().parent.parent
    if not (here / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def describe(library: str, nodes: Sequence[int], hosts: Sequence[str]) -> dict[str, Any]:
    """The environment of a run, as JSON values."""
    return {
        "busbar": busbar_version(),
        "revision": _revision(),
        "library": library,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "kernel": platform.release(),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "hosts": list(dict.fromkeys(hosts)),
        "ranks_per_node": [n for _, n in sorted(Counter(nodes).items())],
        "variables": allowed(os.environ),
    }
