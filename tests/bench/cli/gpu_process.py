"""A benchmark under mpirun on stand-in GPUs: ``gpu_process GPUS COLLECTIVE [options]``."""

from __future__ import annotations

import os
import sys
from typing import Any

from bench.cli.main import main
from collectives.execution.gpu import take
from tests.gpu_standin import Cupy, Machine


def _nccl(machine: Machine) -> Any:
    # Imports mpi4py, which starts MPI: not before the benchmark does.
    from tests.nccl_processes import NcclOfProcesses

    return NcclOfProcesses(machine)


def stand_in(gpus: int) -> None:
    """Have this process find so many GPUs, and NCCL between them, that are not there."""
    version = int(os.environ.get("BUSBAR_STANDIN_NCCL", "23203"))
    machine = Machine(gpus=gpus, nccl=version)
    cupy = Cupy(machine)
    for name, given in {
        "load_cupy": lambda: cupy,
        "load_nccl": lambda: _nccl(machine),
        "driver_here": lambda: True,
    }.items():
        setattr(take, name, given)


if __name__ == "__main__":
    stand_in(int(sys.argv[1]))
    sys.exit(main(sys.argv[2], sys.argv[3:]))
