"""The launcher that started this process, by its environment, and whether it is the wrong one.

A process started by the launcher of another MPI believes that it is alone. This module loads no MPI
library; the caller says which one it has.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from busbar.cpulist import members
from busbar.errors import Unsupported
from busbar.host import cores

_OPEN_MPI = "Open MPI"
# (launcher, variable with the rank, variable with the number of ranks). A Slurm *job* sets its
# variables for the batch script too; only a step that srun started has a SLURM_STEP_ID beside
# SLURM_PROCID with more than one task.
_SIGNS = (
    (_OPEN_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("MPICH (Hydra)", "PMI_RANK", "PMI_SIZE"),
    ("PALS", "PALS_RANKID", "PALS_SIZE"),
    ("Slurm (srun)", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
# Variables with the number of ranks on this host: of Hydra (MPICH, Intel MPI), Open MPI, MVAPICH.
_LOCAL_SIZE = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")
# Processes of launchers whose children ranks are, as the kernel names them (15 characters).
_PARENTS = ("hydra_pmi_proxy", "prterun", "prted", "orted", "orterun", "mpirun", "mpiexec",
            "slurmstepd", "palsd")  # fmt: skip
# How often a launcher's cores are looked at before they are believed to be too few, and how long
# apart, in seconds.
_LOOKS, _LOOK_S = 4, 0.01


class Launched(NamedTuple):
    """The launcher that started this process, by its environment variables."""

    by: str
    rank: int
    size: int

    @property
    def grace_s(self) -> float:
        """Seconds that a silent rank waits before it ends, so that rank 0 can print why.

        Open MPI's launcher ends all at the first bad status, and on a busy host ranks start
        seconds apart; MPICH's waits until each has ended by itself.
        """
        return 10.0 if self.by == _OPEN_MPI else 2.0


def launched(env: Mapping[str, str] = os.environ) -> Launched | None:
    """The launcher of this process, or None when it was started by hand."""
    for by, rank, size in _SIGNS:
        if env.get(rank, "").isdigit() and env.get(size, "").isdigit():
            return Launched(by, int(env[rank]), int(env[size]))
    return None


def local_size(env: Mapping[str, str] = os.environ) -> int | None:
    """The number of ranks on this host by the launcher's variables; None where it does not say."""
    for name in _LOCAL_SIZE:
        if env.get(name, "").isdigit():
            return int(env[name])
    # Slurm counts node by node: 4(x2),3 is 4, 4 and 3.
    counts = list[int]()
    for part in env.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        counts += [int(match[1])] * int(match[2] or 1) if match else []
    node = env.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else None


def share_cores(env: Mapping[str, str] = os.environ) -> bool:
    """Whether ranks outnumber the cores of this host, as far as that can be known before MPI.

    A rank may be bound to a core of its own; the cores of all ranks here are those of the launcher
    whose children they are. Where it is not seen, this rank's own cores count.
    """
    ranks = local_size(env)
    if ranks is None:
        return False
    available = set[int]()
    for _ in range(_LOOKS):
        # A process that explores the machine binds itself to each core in turn for a moment.
        available |= {*(_launchers_cores() or cores())}
        if not 0 < len(available) < ranks:
            return False
        time.sleep(_LOOK_S)
    return True


def _launchers_cores(process: str = "self", proc: Path = Path("/proc")) -> set[int]:
    """The cores of all ancestors that are launchers; none where there is none to be seen."""
    cores = set[int]()
    try:
        while process != "0":
            lines = (proc / process / "status").read_text().splitlines()
            status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            if process != "self" and status["Name"] in _PARENTS:
                cores |= {*(members(status["Cpus_allowed_list"]) or ())}
            process = status["PPid"]
    except (OSError, KeyError):
        pass
    return cores


def speaks() -> bool:
    """Whether this process prints: rank 0 of its launcher, or one that was started by hand."""
    sign = launched()
    return sign is None or sign.rank == 0


def check_library(library: str, env: Mapping[str, str] = os.environ) -> None:
    """Refuse, before MPI starts, a launcher that is known to be another MPI's.

    ``library``: the MPI library's version text. Where the launcher may serve either MPI (srun
    does), `check_world` tells afterwards. Raises Unsupported with the reason.
    """
    sign = launched(env)
    if sign is None or "SLURM_STEP_NUM_TASKS" in env:
        return
    if (sign.by == _OPEN_MPI) != (_OPEN_MPI in library):
        raise _wrong(sign, library, "cannot join them")


def check_world(size: int, library: str, env: Mapping[str, str] = os.environ) -> None:
    """Refuse a world of another size than its launcher made. Raises Unsupported with the reason."""
    sign = launched(env)
    if sign is not None and sign.size != size:
        raise _wrong(sign, library, f"sees {size}")


def _wrong(sign: Launched, library: str, finding: str) -> Unsupported:
    return Unsupported(
        f"started as {sign.size} ranks by the launcher of {sign.by}, but the MPI library here"
        f" ({library}) {finding}: the launcher belongs to another MPI; use the mpirun that"
        f" comes with the library, {mpirun_beside() or 'in the bin folder of its installation'}"
    )


def mpirun_beside() -> str | None:
    """The mpirun of this Python's own environment, else the one on PATH."""
    mpirun = Path(sys.prefix) / "bin" / "mpirun"
    return str(mpirun) if mpirun.exists() else shutil.which("mpirun")
