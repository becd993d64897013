"""Worlds: groups that are worlds of their own, and alarms, among threads and under real MPIs."""

from __future__ import annotations

from collectives.execution.inproc.world import run
from tests.collectives.world_process import check
from tests.conftest import Mpi, Run


def test_groups_and_alarms_among_threads() -> None:
    """Rule: a group's ranks are numbered by key; an alarm reaches all others and waits for none."""
    run(4, check, deadline=100)


def test_groups_and_alarms_under_mpi(mpi: Mpi, run: Run) -> None:
    """Rule: the same under MPI. And the extension, which knows no MPI, calls its collectives as
    mpi4py does, and memory for puts is aligned; see `tests.collectives.world_process`.
    """  # noqa: D205
    program = (mpi.python, "-m", "tests.collectives.world_process")
    done = run(mpi.mpirun, *mpi.flags, "-n", "4", *program)
    assert (done.returncode, done.stdout) == (0, "all right\n"), done.stderr
