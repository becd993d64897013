"""Launches of a qualification on GPUs that are not there: one rank a GPU, over NCCL."""

from __future__ import annotations

import pytest

from bench.qualify.lines import Line, parse
from bench.qualify.model import Stage
from bench.qualify.task import Task
from tests.conftest import Mpi, Run, good, under
from tests.gpu_standin import library


@pytest.mark.parametrize(
    ("stage", "hosts", "measures"),
    [
        (Stage.ALONE, 1, {"memory", "allreduce"}),
        (Stage.PAIRS, 2, {"forward", "backward", "both"}),
    ],
)
def test_gpus_are_measured_over_nccl(
    mpich: Mpi, run: Run, stage: Stage, hosts: int, measures: set[str]
) -> None:
    """Rule: where ranks have GPUs they exchange over NCCL, checked, and copy in GPU memory."""
    library()  # built once, and found by the ranks through the environment
    task = Task(stage.value, hosts, 1 << 16, 2, 60.0, "auto")
    out = good(run(*under(mpich, 2, "-m", "tests.qualify.gpu_rank", "2", *task.words())))
    lines: list[Line] = [line for line in map(parse, out.splitlines()) if line]
    finished = {line.rank: line for line in lines if line.event == "finished"}
    assert finished.keys() == {0, 1}
    assert {line.wrong for line in finished.values()} == {0}
    assert finished[0].rates.keys() == measures
    if stage is Stage.ALONE:
        assert finished[0].facts["transport"] == "nccl"
        assert finished[0].facts["library"].startswith("NCCL 2.")
