"""Whole runs under mpirun on GPUs that are not there: one rank a GPU, NCCL's id by MPI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Mpi, Run, good, table_rows, thorough, under
from tests.gpu_standin import library
from tests.together import together

SMALL = ("-b", "1K", "-e", "2K", "-n", "3")
STARTED = ("-m", "tests.bench.cli.gpu_process")


@pytest.mark.parametrize("mpi", ["openmpi", *thorough("mpich")], indirect=True)
def test_mpirun_takes_the_gpus_with_no_flag(mpi: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: one rank a GPU by its place on the node; our algorithms beside NCCL's, all right."""
    library()  # built once, and found by the others through the environment
    file = tmp_path / "run.jsonl"
    out = good(run(*under(mpi, 3, *STARTED, "4", "allreduce", *SMALL, "--out", str(file))))
    for name in ("ring", "tree", "ps", "library"):
        assert f"allreduce {name} (nccl)" in out
    rows = table_rows(out)
    assert len(rows) >= 8 and all(row[8] == row[12] == "0" for row in rows)
    environment = json.loads(file.read_text().splitlines()[0])["environment"]
    assert environment["mapping"]["gpu"] == [f"0000:{7 + n:02x}:00.0" for n in range(3)]


def test_groups_other_collectives_and_refusals(mpich: Mpi, run: Run) -> None:
    """Rule: --split goes through commSplit, and every group's rows are reported and right; library
    calls and what is composed of messages are right among processes, too; more ranks than GPUs,
    asked for NCCL, are refused in one line with the advice, and no rank hangs.
    """  # noqa: D205
    names = ("alltoall", "reduce_scatter", "broadcast")
    shared = (*STARTED, "1", "allreduce", "--transport", "nccl", *SMALL)
    commands = [(*STARTED, "4", name, *SMALL, "-d", "bfloat16") for name in names]
    commands += [(*STARTED, "4", "allreduce", *SMALL, "--split", "mod:2"), shared]
    *others, groups, refused = together(run, mpich, 4, *commands)
    for done in (*others, groups):
        rows = table_rows(good(done))
        assert len(rows) >= (16 if done is groups else 1) and all(row[8] == "0" for row in rows)
    assert refused.returncode == 2 and refused.stderr.count("--oversubscribe-gpu") == 1


def test_an_older_nccl_shares_by_host_names_and_that_is_labelled(mpich: Mpi, run: Run) -> None:
    """Rule: before 2.30 processes on one GPU are hosts of their own to NCCL: correctness only."""
    more = ("--transport", "nccl", "--oversubscribe-gpu", *SMALL, "-A", "ring,library")
    env = {"BUSBAR_STANDIN_NCCL": "22907"}
    out = good(run(*under(mpich, 2, *STARTED, "1", "allreduce", *more), env=env))
    assert "# correctness only: to NCCL 2.29.7 each rank that shares a GPU is on a host" in out
    assert all(row[8] == "0" for row in table_rows(out))
