"""``--split`` on the host: groups run at once, and every one of them is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Mpi, Run, good, in_process, table_rows, thorough

SMALL = ["-b", "1K", "-e", "2K", "-n", "3", "-A", "ring"]


def test_groups_of_threads_of_different_sizes(tmp_path: Path) -> None:
    """Rule: groups need not be of one size; each has its table and its file."""
    file = tmp_path / "run.jsonl"
    more = ["--split", "div:2", "--out", str(file)]
    out = good(in_process("allreduce", "--threads 3 --transport inproc", *SMALL, *more))
    assert "# group 0 of 2: ranks 0 1\n" in out and "# group 1 of 2: ranks 2\n" in out
    for number, size in ((0, 2), (1, 1)):
        first, *rows = (tmp_path / f"run.group{number}.jsonl").read_text().splitlines()
        assert json.loads(first)["environment"]["group"]["number"] == number
        assert [json.loads(row)["ranks"] for row in rows] == [size] * 4


@pytest.mark.parametrize("transport", ["auto", *thorough("mpi")])
def test_groups_under_mpi(mpich: Mpi, run: Run, transport: str) -> None:
    """Rule: the same as processes, each group with its own library and shared memory."""
    program = (mpich.python, "-m", "bench.allreduce", "--transport", transport, *SMALL)
    out = good(run(mpich.mpirun, "-n", "4", *program, "--split", "mod:2"))
    titles = [line for line in out.splitlines() if line.startswith("# group")]
    assert titles == ["# group 0 of 2: ranks 0 2", "# group 1 of 2: ranks 1 3"]
    assert len(table_rows(out)) == 4
