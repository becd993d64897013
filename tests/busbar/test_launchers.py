"""Launchers are known by their marks in the environment, and the wrong one is told."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from busbar.errors import Unsupported
from busbar.launchers import by_hand, check_library, check_world, launched


def test_nothing_in_the_environment_means_started_by_hand() -> None:
    """Rule: a Slurm job's batch script is not a step of ranks."""
    env = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "64"}
    assert launched(env) is None and by_hand(env)
    assert not any(by_hand({name: "0"}) for name in ("PMIX_RANK", "PMI_RANK", "PMI_ID"))
    assert not by_hand({"PMI_RANK": "0", "PMI_SIZE": "1"})


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


def test_a_world_of_another_size_than_the_launcher_made_is_wrong() -> None:
    """Rule: the reason names both MPIs and both sizes."""
    env = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
    with pytest.raises(Unsupported, match=r"4 ranks by the launcher of Open MPI.*MPICH 5.*sees 1"):
        check_world(1, "MPICH 5.0", env)
    check_world(4, "Open MPI v5", env)


@pytest.mark.parametrize("library", ["Open MPI v5.0.11", "MPICH 5.0"])
def test_the_launcher_of_another_mpi_is_wrong_before_mpi_starts(library: str) -> None:
    """Rule: Open MPI's launcher serves its own library and no other; srun may serve either."""
    marks = {
        "Open MPI": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"},
        "MPICH": {"PMI_RANK": "1", "PMI_SIZE": "4"},
    }
    for maker, env in marks.items():
        ours = library.startswith(maker)
        with nullcontext() if ours else pytest.raises(Unsupported, match="cannot join them"):
            check_library(library, env)
        check_library(library, {**env, "SLURM_STEP_NUM_TASKS": "4"})
    check_library(library, {})
