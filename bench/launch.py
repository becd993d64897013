"""Launchers: what the environment says of one, the right flags for one, and the wrong one found out.

A process started by the launcher of another MPI believes that it is alone. Every such process
would measure itself and print a table; that is refused here.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench import child
from collectives.errors import BusbarError, Unavailable, Unsupported
from collectives.mpi import library_version, load_mpi

if TYPE_CHECKING:
    from reports.files import StoreError

__all__ = ["Launched", "check_library", "check_world", "launched", "launcher", "said", "start"]

# (launcher, variable with the rank, variable with the number of ranks). A Slurm *job* sets its
# variables for the batch script too; only a step that srun started has a SLURM_STEP_ID beside
# SLURM_PROCID with more than one task.
_SIGNS = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("MPICH (Hydra)", "PMI_RANK", "PMI_SIZE"),
    ("PALS", "PALS_RANKID", "PALS_SIZE"),
    ("Slurm (srun)", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


# For so long a silent rank leaves the word to rank 0, should the launcher not end it before; on a
# busy host ranks start seconds apart.
_GRACE_S = 10.0


class Launched(NamedTuple):
    """What the environment says about the launcher that started this process."""

    by: str
    rank: int
    size: int


def launched(env: Mapping[str, str] = os.environ) -> Launched | None:
    """The launcher of this process, or None when it was started by hand."""
    for by, rank, size in _SIGNS:
        if env.get(rank, "").isdigit() and env.get(size, "").isdigit():
            return Launched(by, int(env[rank]), int(env[size]))
    return None


def said(error: BusbarError | StoreError) -> int:
    """Say, on rank 0 alone, why this process ends; gives the exit status.

    A launcher ends all ranks at the first bad status of one. A silent rank therefore stays until
    it is ended or some time has passed: it must not cut off the one that speaks.
    """
    sign = launched()
    if sign is None or sign.rank == 0:
        print(f"busbar: {error}", file=sys.stderr, flush=True)
    else:
        time.sleep(_GRACE_S)
    return error.exit_status


def check_library(library: str, env: Mapping[str, str] = os.environ) -> None:
    """Refuse, before MPI starts, a launcher that is known to be another MPI's.

    ``library``: the MPI library's version text. Raises Unsupported with the reason. Where the
    launcher may serve either MPI (srun does), `check_world` tells afterwards.
    """
    sign = launched(env)
    if sign is None or "SLURM_STEP_NUM_TASKS" in env:
        return
    if (sign.by == "Open MPI") != ("Open MPI" in library):
        raise Unsupported(_wrong(sign, library, "cannot join them"))


def check_world(size: int, library: str, env: Mapping[str, str] = os.environ) -> None:
    """Refuse a world of another size than its launcher made. Raises Unsupported with the reason."""
    sign = launched(env)
    if sign is not None and sign.size != size:
        raise Unsupported(_wrong(sign, library, f"sees {size}"))


def _wrong(sign: Launched, library: str, finding: str) -> str:
    return (
        f"started as {sign.size} ranks by the launcher of {sign.by}, but the MPI library here"
        f" ({library}) {finding}: the launcher belongs to another MPI; use the mpirun that"
        f" comes with the library, {_beside() or 'in the bin folder of its installation'}"
    )


def _beside() -> str | None:
    """The mpirun of this Python's own environment."""
    found = Path(sys.prefix) / "bin" / "mpirun"
    return str(found) if found.exists() else shutil.which("mpirun")


def launcher(
    ranks: int, library: str, mpirun: str, env: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The start of a command line for so many ranks on this host, and what its environment needs.

    ``library`` is the MPI library's version text: Open MPI refuses root and more ranks than cores
    unless told otherwise.
    """
    extra: dict[str, str] = {}
    command = [mpirun, "-n", str(ranks)]
    if "Open MPI" in library:
        command.insert(1, "--oversubscribe")
        if os.geteuid() == 0:
            extra = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return command, {**env, **extra}


def start(module: Sequence[str], argv: Sequence[str], ranks: int) -> int:
    """Run ``python -m`` module and arguments on so many ranks under the launcher; gives its exit status.

    Raises Unavailable without an MPI or its launcher.
    """
    library = library_version(load_mpi(initialize=False))
    mpirun = _beside()
    if mpirun is None:
        raise Unavailable(
            "no mpirun beside this Python or on PATH; pip install mpich, or use --transport inproc"
        )
    command, env = launcher(ranks, library, mpirun, os.environ)
    command += [sys.executable, "-m", *module, *argv]
    ended = child.run(command, env, child.SOFTLY if "Open MPI" in library else None)
    return 128 + ended.interrupted if ended.interrupted else ended.status
