"""Find the launcher that started this process, and refuse the launcher of another MPI library.

A process that another MPI's launcher starts would run as the only rank. This module reads
environment variables and loads no MPI library; the caller names the library.
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
from busbar.errors import Unavailable, Unsupported
from busbar.host import cores
from busbar.installation import extra

#: Busbar's commands that start ranks themselves.
RANK_STARTERS = ("qualify", "tune")

_OPEN_MPI = "Open MPI"
# (launcher, variable with the rank, variable with the number of ranks). A Slurm *job* sets
# SLURM_PROCID for its batch script, too; the number of tasks of a *step* belongs to srun.
_SIGNS = (
    (_OPEN_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("MPICH (Hydra)", "PMI_RANK", "PMI_SIZE"),
    ("PALS", "PALS_RANKID", "PALS_SIZE"),
    ("Slurm (srun)", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
# Options that put successive ranks on a host until it has its share.
_BLOCKS = {
    _OPEN_MPI: "--map-by ppr:{ranks}:node",
    "MPICH (Hydra)": "-ppn {ranks}",
    "Slurm (srun)": "--distribution=block",
}
# Variables with the number of ranks on this host: of Hydra (MPICH, Intel MPI), Open MPI, MVAPICH.
_LOCAL_SIZE = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")
# Variables of launchers that are not among the signs above: PMIx, PMI without a size, Intel MPI,
# IBM's jsrun, Cray's ALPS, Flux.
_OTHER_SIGNS = ("PMIX_RANK", "PMI_RANK", "PMI_FD", "PMI_ID", "MPI_LOCALRANKID",
                "JSM_NAMESPACE_RANK", "ALPS_APP_PE", "FLUX_TASK_RANK")  # fmt: skip
# Launchers' processes that start ranks, by the kernel's names (15 characters).
_PARENTS = ("hydra_pmi_proxy", "prterun", "prted", "orted", "orterun", "mpirun", "mpiexec",
            "slurmstepd", "palsd")  # fmt: skip
# Lines of Hydra (MPICH) on an error of its own: [mpiexec@host] function (file.c:line): text.
_INTERNAL = re.compile(r"\[(?:mpiexec|proxy)\S*@[^]]*\] \w+ \(.*\.c:\d+\):")
# How many times a launcher's cores are read before they are taken as too few, and the seconds
# between two readings.
_LOOKS, _LOOK_S = 4, 0.01


class Launched(NamedTuple):
    """What the launcher's environment variables say: its name, this rank, the number of ranks."""

    by: str
    rank: int
    size: int

    @property
    def grace_s(self) -> float:
        """Seconds that a rank other than 0 waits before it exits, so that rank 0 can print why.

        Open MPI's launcher kills all ranks at the first bad status, and on a busy host ranks start
        seconds apart. MPICH's launcher waits until each rank has exited.
        """
        return 10.0 if self.by == _OPEN_MPI else 2.0

    def blocks(self, ranks: int) -> str:
        """The option that puts ``ranks`` successive ranks on each host; empty if not known."""
        return _BLOCKS.get(self.by, "").replace("{ranks}", str(ranks))


def launched(env: Mapping[str, str] = os.environ) -> Launched | None:
    """The launcher of this process; None if it was started without a launcher."""
    for by, rank, size in _SIGNS:
        if env.get(rank, "").isdigit() and env.get(size, "").isdigit():
            return Launched(by, int(env[rank]), int(env[size]))
    return None


def by_hand(env: Mapping[str, str] = os.environ) -> bool:
    """True if no launcher has started this process, not even one whose ranks are not known."""
    return launched(env) is None and not any(name in env for name in _OTHER_SIGNS)


def local_size(env: Mapping[str, str] = os.environ) -> int | None:
    """The number of ranks on this host by the launcher's variables; None if they lack it."""
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
    """True if this host has more ranks than cores, as far as that is known before MPI starts.

    A rank may be bound to one core, so the cores of all ranks here are read from their parent, the
    launcher. If no launcher is found among the parents, this rank's own cores count.
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


def _launchers_cores(proc: Path = Path("/proc")) -> set[int]:
    """The cores of all parent processes that are launchers; empty if there are none."""
    cores, process = set[int](), "self"
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


def is_internal(line: str) -> bool:
    """True if a launcher's line says where in its own source it failed, and nothing of a rank."""
    return _INTERNAL.match(line) is not None


def speaks() -> bool:
    """True if this process prints: it is its launcher's rank 0, or was started by hand."""
    sign = launched()
    return sign is None or sign.rank == 0


def check_library(library: str, env: Mapping[str, str] = os.environ) -> None:
    """Raise Unsupported, before MPI starts, if the launcher is known to be another MPI's.

    ``library``: the MPI library's version text. A launcher that may serve several MPIs (srun) is
    checked by `check_world` after MPI has started.
    """
    sign = launched(env)
    if sign is None or "SLURM_STEP_NUM_TASKS" in env:
        return
    if (sign.by == _OPEN_MPI) != (_OPEN_MPI in library):
        raise _wrong(sign, library, "cannot join them")


def check_world(size: int, library: str, env: Mapping[str, str] = os.environ) -> None:
    """Raise Unsupported if MPI sees another number of ranks than the launcher has started.

    ``size``: the number that MPI sees. ``library``: the MPI, for the message.
    """
    sign = launched(env)
    if sign is not None and sign.size != size:
        raise _wrong(sign, library, f"sees {size}")


def _wrong(sign: Launched, library: str, finding: str) -> Unsupported:
    return Unsupported(
        f"started as {sign.size} ranks by the launcher of {sign.by}, but the MPI library here"
        f" ({library}) {finding}: the launcher belongs to another MPI; use the mpirun that"
        f" comes with the library, {mpirun_beside() or 'in the bin folder of its installation'}"
    )


def find_mpirun() -> str:
    """As `mpirun_beside`. Raises Unavailable, with the remedy, if there is none."""
    mpirun = mpirun_beside()
    if mpirun is None:
        raise Unavailable(f"no mpirun beside this Python or on PATH; {extra('mpi')}")
    return mpirun


def find_program(name: str) -> str:
    """A program's name if it is on PATH, else its path in this Python's environment.

    The name is returned as it is if neither has it, or if it is a path.
    """
    beside = Path(sys.prefix) / "bin" / name
    elsewhere = "/" in name or shutil.which(name) is not None or not beside.exists()
    return name if elsewhere else str(beside)


def mpirun_beside() -> str | None:
    """The mpirun in this Python's environment, else the one on PATH; None if there is none."""
    mpirun = Path(sys.prefix) / "bin" / "mpirun"
    return str(mpirun) if mpirun.exists() else shutil.which("mpirun")
