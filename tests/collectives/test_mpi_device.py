"""MPI over device buffers, under real MPIs: handed over, and staged through the host."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from collectives.execution.mpi.device import takes_device_memory
from tests.conftest import Mpi, Run, thorough
from tests.gpu_standin import library


@pytest.mark.parametrize("mpi", ["mpich", *thorough("openmpi")], indirect=True)
def test_every_algorithm_over_device_buffers(mpi: Mpi, run: Run) -> None:
    """Rule: whether MPI takes device memory or not, every algorithm gives what NumPy gives."""
    library()  # built once, and found by the others through the environment
    program = (mpi.python, "-m", "tests.collectives.mpi_device_process")
    done = run(mpi.mpirun, *mpi.flags, "-n", "3", *program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all right\n"


def test_a_library_that_does_not_say_takes_none() -> None:
    """Rule: device memory is handed to nobody who has not said that it takes it."""
    assert not takes_device_memory(SimpleNamespace(__file__="/nowhere/at/all.so"))
